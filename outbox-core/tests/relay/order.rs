//! I5: order per key, through refusals, outages and operators.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use outbox_core::{
    DeadFilter, DeadLetters, DeadReason, ErrorKind, OnDead, OrderClass, Outcome, RetryPolicy,
    Route, Scope, StoredEvent, TopicPattern,
};

use crate::script::{
    Script, commit, dead, drained, error, name, one_lane, quick_policy, run, run_route,
};

/// Fails the event of this name in message scope, `times` times.
fn failing(order: OrderClass, bad: &'static str, times: usize) -> Arc<Script> {
    let left = Mutex::new(times);
    Arc::new(Script::new(order, move |event| {
        let mut left = left.lock().unwrap();
        if name(event) == bad && *left > 0 {
            *left -= 1;
            return Outcome::Failed(error(ErrorKind::Refused));
        }
        Outcome::delivered()
    }))
}

#[tokio::test(start_paused = true)]
async fn retry_overtakes_key() {
    for order in [OrderClass::None, OrderClass::InFlight] {
        let store = one_lane();
        commit(
            &store,
            &[
                ("t", "k", "a1"),
                ("t", "k", "a2"),
                ("t", "other", "b1"),
                ("t", "k", "a3"),
            ],
        );
        let publisher = failing(order, "a1", 2);
        let relay = run(&store, &publisher, quick_policy());
        drained(&store).await;
        commit(&store, &[("t", "k", "a4")]);
        drained(&store).await;
        relay.stop().await;
        let names = publisher.names();
        let last_a1 = names.iter().rposition(|name| name == "a1").unwrap();
        let after: Vec<_> = names[last_a1..]
            .iter()
            .filter(|name| name.starts_with('a'))
            .collect();
        assert_eq!(after, ["a1", "a2", "a3", "a4"], "{order:?}: {names:?}");
        let b1 = names.iter().position(|name| name == "b1").unwrap();
        assert!(b1 < last_a1, "the other key does not wait: {names:?}");
        if order == OrderClass::None {
            assert_eq!(publisher.first_by_key()["k"], ["a1", "a2", "a3", "a4"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn later_events_of_a_blocked_key_are_held_also_after_a_takeover() {
    let store = one_lane();
    commit(&store, &[("t", "k", "a1")]);
    let publisher = failing(OrderClass::InFlight, "a1", 3);
    let policy = RetryPolicy {
        base: Duration::from_secs(20),
        ..RetryPolicy::default()
    };
    let first = run(&store, &publisher, policy.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    commit(&store, &[("t", "k", "a2"), ("t", "other", "b1")]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(publisher.names(), ["b1"], "a2 waits behind a1");
    first.stop().await;
    let second = run(&store, &publisher, policy);
    commit(&store, &[("t", "k", "a3"), ("t", "other", "b2")]);
    drained(&store).await;
    second.stop().await;
    assert_eq!(publisher.first_by_key()["k"], ["a1", "a2", "a3"]);
    assert_eq!(
        publisher
            .names()
            .iter()
            .filter(|name| name.starts_with('a'))
            .count(),
        3,
        "no copies"
    );
}

#[tokio::test(start_paused = true)]
async fn one_event_per_key_is_in_flight_without_order_in_flight_or_when_strict() {
    for (order, strict) in [
        (OrderClass::None, false),
        (OrderClass::InFlight, true),
        (OrderClass::InFlight, false),
    ] {
        let store = one_lane();
        let names: Vec<String> = (0..60).map(|n| format!("{n}")).collect();
        let keys: Vec<String> = (0..60).map(|n| format!("k{}", n % 3)).collect();
        let events: Vec<_> = names
            .iter()
            .zip(&keys)
            .map(|(n, k)| ("t", k.as_str(), n.as_str()))
            .collect();
        commit(&store, &events);
        let publisher = Arc::new(Script::new(order, |_| Outcome::delivered()));
        let relay = run_route(
            &store,
            Route::new("r", publisher.clone()).strict_order(strict),
        );
        drained(&store).await;
        relay.stop().await;
        let most = publisher
            .calls
            .lock()
            .unwrap()
            .iter()
            .map(|call| {
                call.iter()
                    .filter(|seen| seen.key.as_deref() == Some("k0"))
                    .count()
            })
            .max();
        let waves = order == OrderClass::None || strict;
        assert_eq!(
            most == Some(1),
            waves,
            "{order:?} strict={strict}: {most:?}"
        );
        let of_k1: Vec<String> = (0..60)
            .filter(|n| n % 3 == 1)
            .map(|n| n.to_string())
            .collect();
        assert_eq!(publisher.first_by_key()["k1"], of_k1);
    }
}

#[tokio::test(start_paused = true)]
async fn key_blocked_forever_hold_and_skip() {
    for on_dead in [OnDead::HoldKey, OnDead::Skip] {
        let store = one_lane();
        commit(
            &store,
            &[("t", "k", "a1"), ("t", "k", "a2"), ("t", "other", "b1")],
        );
        let publisher = failing(OrderClass::None, "a1", 3);
        let relay = run(
            &store,
            &publisher,
            RetryPolicy {
                on_dead,
                ..quick_policy()
            },
        );
        drained(&store).await;
        let letters = dead(&store).await;
        assert_eq!((letters.len(), letters[0].attempts), (1, 3));
        assert!(
            letters[0].note.text.contains("as the test says"),
            "{letters:?}"
        );
        match on_dead {
            OnDead::HoldKey => assert_eq!(publisher.names(), ["b1"]),
            OnDead::Skip => assert!(publisher.names().contains(&"a2".to_owned())),
        }
        assert_eq!(store.requeue(&DeadFilter::default(), 10).await.unwrap(), 1);
        drained(&store).await;
        commit(&store, &[("t", "k", "a3")]);
        drained(&store).await;
        relay.stop().await;
        if on_dead == OnDead::HoldKey {
            assert_eq!(publisher.first_by_key()["k"], ["a1", "a2", "a3"]);
        }
        assert!(dead(&store).await.is_empty());
    }
}

/// A refusal that shows before anything is sent comes in time for what follows of the key, however
/// many of it are in one call; its scope, and a panic on the way, concern no other event.
#[tokio::test(start_paused = true)]
async fn what_is_found_invalid_holds_its_key_back() {
    for on_dead in [OnDead::HoldKey, OnDead::Skip] {
        let store = one_lane();
        commit(
            &store,
            &[("t", "k", "a1"), ("t", "k", "a2"), ("t", "k", "a3")],
        );
        commit(&store, &[("t", "other", "b1"), ("t", "p", "panics")]);
        commit(&store, &[("t", "p", "c2"), ("t", "other", "b2")]);
        let answered = |_: &StoredEvent| Outcome::delivered();
        let publisher = Script::new(OrderClass::InFlight, answered).validate(|event| {
            match name(event).as_str() {
                "a2" => Err(error(ErrorKind::TooLarge).scope(Scope::Destination)),
                "panics" => panic!("as the test says"),
                _ => Ok(()),
            }
        });
        let publisher = Arc::new(publisher);
        let policy = RetryPolicy {
            on_dead,
            ..quick_policy()
        };
        let relay = run(&store, &publisher, policy);
        drained(&store).await;
        let health = relay.health.report();
        relay.stop().await;
        assert!(
            health.routes.values().all(|route| !route.open),
            "{health:?}"
        );
        let letters: Vec<_> = dead(&store)
            .await
            .into_iter()
            .map(|letter| (letter.note.kind, letter.reason, letter.attempts))
            .collect();
        assert_eq!(letters.len(), 2, "{letters:?}");
        let exhausted = DeadReason::AttemptsExhausted;
        for expected in [
            (Some(ErrorKind::TooLarge), DeadReason::Rejected, 1),
            (Some(ErrorKind::Panic), exhausted, 3),
        ] {
            assert!(letters.contains(&expected), "{letters:?}");
        }
        let mut names = publisher.names();
        names.sort();
        match on_dead {
            OnDead::HoldKey => assert_eq!(names, ["a1", "b1", "b2"]),
            OnDead::Skip => assert_eq!(names, ["a1", "a3", "b1", "b2", "c2"]),
        }
        assert_eq!(publisher.tries("a2") + publisher.tries("panics"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn discarding_the_dead_frees_its_key() {
    let store = one_lane();
    commit(&store, &[("t", "k", "a1"), ("t", "k", "a2")]);
    let publisher = Arc::new(Script::new(OrderClass::None, |event| {
        match name(event).as_str() {
            "a1" => Outcome::Rejected(error(ErrorKind::Refused)),
            _ => Outcome::delivered(),
        }
    }));
    let relay = run(&store, &publisher, quick_policy());
    drained(&store).await;
    assert!(publisher.names().is_empty(), "held behind the dead one");
    assert_eq!(store.discard(&DeadFilter::default(), 10).await.unwrap(), 1);
    drained(&store).await;
    relay.stop().await;
    assert_eq!(publisher.names(), ["a2"]);
}

#[tokio::test(start_paused = true)]
async fn order_survives_an_outage_in_the_middle_of_a_batch() {
    for order in [OrderClass::None, OrderClass::InFlight] {
        let store = one_lane();
        let names: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
        let events: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| ("t", ["x", "y", "z"][n % 3], name.as_str()))
            .collect();
        commit(&store, &events);
        let failures = Mutex::new(0);
        // Down from event 100 on for six answers, landing every other time without an answer.
        let publisher = Arc::new(Script::new(order, move |event| {
            let mut failures = failures.lock().unwrap();
            if name(event).as_str() >= "100" && *failures < 6 {
                *failures += 1;
                return if *failures % 2 == 0 {
                    Outcome::Failed(error(ErrorKind::Unavailable))
                } else {
                    Outcome::Unknown(error(ErrorKind::ConnectionLost))
                };
            }
            Outcome::delivered()
        }));
        let relay = run_route(
            &store,
            Route::new("r", publisher.clone()).policy(TopicPattern::All, quick_policy()),
        );
        drained(&store).await;
        relay.stop().await;
        let mut expected: Vec<String> = Vec::new();
        let last = publisher.names();
        for key in 0..3 {
            expected.clear();
            expected.extend(
                names
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| n % 3 == key)
                    .map(|(_, name)| name.clone()),
            );
            // Copies may come earlier; after the outage each key is complete and in order.
            let mut rest: Vec<&String> = last
                .iter()
                .rev()
                .filter(|name| expected.contains(name))
                .collect();
            rest.dedup();
            let tail: Vec<&String> = rest.into_iter().take(60).collect();
            let wanted: Vec<&String> = expected.iter().rev().take(60).collect();
            assert_eq!(tail, wanted, "{order:?}");
        }
        assert!(dead(&store).await.is_empty());
        let attempts = publisher
            .delivered
            .lock()
            .unwrap()
            .iter()
            .map(|seen| seen.attempts)
            .max();
        assert_eq!(attempts, Some(1), "an outage burns no attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn two_relays_keep_order_while_lanes_move() {
    let store = outbox_testkit::memory::MemoryStore::default();
    let publisher = Arc::new(
        Script::new(OrderClass::InFlight, |_| Outcome::delivered()).delay(Duration::from_millis(5)),
    );
    let first = run(&store, &publisher, quick_policy());
    let mut second = None;
    for n in 0..400 {
        let (key, name) = (format!("k{}", n % 20), format!("{n:04}"));
        commit(&store, &[("t", &key, &name)]);
        tokio::time::sleep(Duration::from_millis(50)).await;
        if n == 100 {
            second = Some(run(&store, &publisher, quick_policy()));
        }
        if n == 250
            && let Some(second) = second.take()
        {
            second.stop().await;
        }
    }
    drained(&store).await;
    first.stop().await;
    let by_key = publisher.first_by_key();
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), 400);
    for (key, names) in by_key {
        assert!(names.is_sorted(), "{key}: {names:?}");
    }
}
