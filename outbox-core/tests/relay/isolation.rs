//! I7, I9: what is at fault waits or dies alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox_core::{DeadReason, ErrorKind, OrderClass, Outcome, RetryPolicy, Scope};
use outbox_testkit::eventually;
use tokio::time::sleep;

use crate::script::{Script, commit, dead, drained, error, name, one_lane, quick_policy, run};

#[tokio::test(start_paused = true)]
async fn i7_a_missing_topic_waits_without_burning_attempts() {
    let store = one_lane();
    let missing = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&missing);
    let publisher = Arc::new(Script::new(OrderClass::None, move |event| {
        if event.topic == "missing" && flag.load(Ordering::Relaxed) {
            return Outcome::Failed(error(ErrorKind::TopicNotFound));
        }
        Outcome::delivered()
    }));
    commit(
        &store,
        &[
            ("missing", "a", "m1"),
            ("missing", "b", "m2"),
            ("good", "c", "g1"),
            ("good", "a", "behind m1"),
        ],
    );
    let relay = run(&store, &publisher, quick_policy());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(
        publisher.names(),
        ["g1"],
        "the good topic flows, but not past m1's key"
    );
    let tries = publisher
        .calls
        .lock()
        .unwrap()
        .iter()
        .flatten()
        .filter(|seen| seen.name == "m1")
        .count();
    assert!((10..3000).contains(&tries), "probed now and then: {tries}");
    assert!(relay.health.ready(), "a topic does not pause its route");
    missing.store(false, Ordering::Relaxed);
    drained(&store).await;
    relay.stop().await;
    assert_eq!(publisher.first_by_key()["a"], ["m1", "behind m1"]);
    assert!(
        publisher
            .delivered
            .lock()
            .unwrap()
            .iter()
            .all(|seen| seen.attempts == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_stays_missing_ends_in_the_dead_letters() {
    let store = one_lane();
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |_| {
        Outcome::Failed(error(ErrorKind::TopicNotFound))
    }));
    commit(&store, &[("missing", "a", "m1")]);
    let policy = RetryPolicy {
        topic_patience: Duration::from_secs(3600),
        ..RetryPolicy::default()
    };
    let relay = run(&store, &publisher, policy);
    sleep(Duration::from_secs(3500)).await;
    assert!(dead(&store).await.is_empty());
    sleep(Duration::from_secs(200)).await;
    assert_eq!(dead(&store).await[0].reason, DeadReason::TopicUnavailable);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unsendable_hot_loop() {
    let store = one_lane();
    let names: Vec<String> = (0..1000).map(|n| format!("good {n}")).collect();
    commit(&store, &[("t", "bad", "bad")]);
    let goods: Vec<_> = names
        .iter()
        .map(|name| ("t", name.as_str(), name.as_str()))
        .collect();
    commit(&store, &goods);
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |event| {
        match name(event).as_str() {
            "bad" => Outcome::Unknown(error(ErrorKind::Refused)),
            _ => Outcome::delivered(),
        }
    }));
    let relay = run(&store, &publisher, quick_policy());
    let started = tokio::time::Instant::now();
    let all = eventually(Duration::from_secs(60), async || {
        (publisher.names().len() == 1000).then_some(())
    });
    all.await.expect("the good ones flow");
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    drained(&store).await;
    let letters = dead(&store).await;
    assert_eq!(
        (letters.len(), letters[0].reason, letters[0].attempts),
        (1, DeadReason::AttemptsExhausted, 3)
    );
    let tries = publisher
        .calls
        .lock()
        .unwrap()
        .iter()
        .flatten()
        .filter(|seen| seen.name == "bad")
        .count();
    assert_eq!(tries, 3);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_publisher_costs_the_culprit_alone() {
    let store = one_lane();
    commit(
        &store,
        &[("t", "a", "1"), ("t", "b", "panics"), ("t", "c", "3")],
    );
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |event| {
        assert_ne!(name(event), "panics");
        Outcome::delivered()
    }));
    let relay = run(&store, &publisher, quick_policy());
    drained(&store).await;
    relay.stop().await;
    assert_eq!(publisher.names(), ["1", "3"]);
    let letters = dead(&store).await;
    assert_eq!(
        (letters.len(), letters[0].attempts, letters[0].note.kind),
        (1, 3, Some(ErrorKind::Panic))
    );
}

#[tokio::test(start_paused = true)]
async fn i9_an_event_that_kills_the_process_is_isolated() {
    let store = one_lane();
    let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let events: Vec<_> = names
        .iter()
        .map(|name| ("t", name.as_str(), name.as_str()))
        .collect();
    commit(&store, &events);
    let publisher =
        Arc::new(Script::new(OrderClass::InFlight, |_| Outcome::delivered()).hanging_on("17"));
    let mut deaths = 0;
    // A supervisor: the process dies, with everything in flight, whenever event 17 is published.
    while dead(&store).await.is_empty() {
        assert!(deaths < 10, "not dead after {deaths} crashes");
        let relay = run(&store, &publisher, RetryPolicy::default());
        let died = eventually(Duration::from_secs(300), async || {
            (publisher.tries("17") > deaths || !dead(&store).await.is_empty()).then_some(())
        });
        died.await.expect("something happens");
        relay.task.abort();
        deaths = publisher.tries("17");
    }
    assert_eq!(deaths, 5);
    let relay = run(&store, &publisher, RetryPolicy::default());
    drained(&store).await;
    relay.stop().await;
    let letters = dead(&store).await;
    assert_eq!((letters.len(), letters[0].reason), (1, DeadReason::Crashed));
    let mut delivered = publisher.names();
    delivered.sort();
    delivered.dedup();
    assert_eq!(delivered.len(), 39, "every other event is delivered");
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_rejects_everything_is_no_reason_for_dead_letters() {
    let store = one_lane();
    let wrong_password = Arc::new(AtomicBool::new(true));
    let (flag, tries) = (Arc::clone(&wrong_password), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&tries);
    let publisher = Arc::new(Script::new(OrderClass::InFlight, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        if flag.load(Ordering::Relaxed) {
            let wrong_password = error(ErrorKind::Unauthenticated);
            return Outcome::Rejected(wrong_password.scope(Scope::Destination));
        }
        Outcome::delivered()
    }));
    commit(&store, &[("t", "a", "1"), ("t", "a", "2"), ("t", "b", "3")]);
    let relay = run(&store, &publisher, quick_policy());
    sleep(Duration::from_secs(300)).await;
    assert!(!relay.health.ready());
    assert!(
        relay.health.report().routes["default"]
            .last_error
            .as_ref()
            .is_some_and(|e| e.contains("unauthenticated"))
    );
    assert!(
        tries.load(Ordering::Relaxed) < 200,
        "{tries:?} tries in five minutes"
    );
    wrong_password.store(false, Ordering::Relaxed);
    drained(&store).await;
    assert!(relay.health.ready());
    relay.stop().await;
    assert_eq!(publisher.first_by_key()["a"], ["1", "2"]);
    assert!(dead(&store).await.is_empty());
    assert!(
        publisher
            .delivered
            .lock()
            .unwrap()
            .iter()
            .all(|seen| seen.attempts == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn i2_rows_that_are_no_events_become_dead_letters() {
    let store = one_lane();
    store.insert_unreadable(
        uuid::Uuid::from_u128(1),
        "t",
        Some("k"),
        "headers are a number",
    );
    commit(&store, &[("t", "other", "1")]);
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |_| Outcome::delivered()));
    let relay = run(&store, &publisher, quick_policy());
    drained(&store).await;
    relay.stop().await;
    assert_eq!(publisher.names(), ["1"]);
    let letters = dead(&store).await;
    assert_eq!(
        (letters.len(), letters[0].reason),
        (1, DeadReason::Unreadable)
    );
    assert!(letters[0].note.text.contains("headers are a number"));
}

/// Its row can't be passed by the cursor either: both come again, and the batch is not lost for its lease.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_no_event_is_returned_behind_a_returned_event() {
    let store = one_lane();
    commit(&store, &[("t", "k", "1")]);
    store.insert_unreadable(
        uuid::Uuid::from_u128(1),
        "t",
        Some("other"),
        "headers are a number",
    );
    let down = AtomicBool::new(true);
    let publisher = Arc::new(Script::new(OrderClass::InFlight, move |_| {
        if down.swap(false, Ordering::Relaxed) {
            Outcome::Failed(error(ErrorKind::Unavailable))
        } else {
            Outcome::delivered()
        }
    }));
    let began = tokio::time::Instant::now();
    let relay = run(&store, &publisher, quick_policy());
    drained(&store).await;
    relay.stop().await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "a lease was lost: {took:?}");
    assert_eq!(publisher.first_by_key()["k"], ["1"]);
    assert_eq!(dead(&store).await.len(), 1);
}
