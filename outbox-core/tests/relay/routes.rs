//! Several routes of one relay: what happens to one is no matter of the others (I7).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::{ErrorKind, OrderClass, Outcome, RelayConfig, Route, TopicPattern, TopicSet};
use outbox_testkit::memory::MemoryStore;
use tokio::time::{sleep, timeout};

use crate::script::{Running, Script, commit, drained, error, one_lane, run_routes};

fn good() -> Script {
    Script::new(OrderClass::InFlight, |_| Outcome::delivered())
}

/// Answers with this failure, in check and publish, while `fails` is set.
fn failing(kind: ErrorKind, fails: &Arc<AtomicBool>) -> Script {
    let (check, publish) = (Arc::clone(fails), Arc::clone(fails));
    Script::new(OrderClass::InFlight, move |_| {
        if publish.load(Ordering::Relaxed) {
            return Outcome::Failed(error(kind));
        }
        Outcome::delivered()
    })
    .check(move || {
        if check.load(Ordering::Relaxed) {
            return Err(error(kind));
        }
        Ok(())
    })
}

fn set() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

/// Each publisher takes the topic of its name.
fn start(store: &MemoryStore, publishers: &[(&str, &Arc<Script>)]) -> Running {
    let routes = publishers.iter().map(|(name, publisher)| {
        let topics = TopicSet::new([name.parse::<TopicPattern>().unwrap()]).unwrap();
        let publisher: Arc<Script> = Arc::clone(publisher);
        Route::new(*name, publisher).topics(topics)
    });
    run_routes(store, routes, RelayConfig::default())
}

#[tokio::test(start_paused = true)]
async fn each_topic_goes_to_its_own_publisher() {
    let store = one_lane();
    commit(
        &store,
        &[
            ("a", "k", "a1"),
            ("b", "k", "b1"),
            ("a", "k", "a2"),
            ("b", "k", "b2"),
        ],
    );
    let (a, b) = (Arc::new(good()), Arc::new(good()));
    let relay = start(&store, &[("a", &a), ("b", &b)]);
    drained(&store).await;
    assert_eq!(
        (a.names(), b.names()),
        (
            vec!["a1".into(), "a2".into()],
            vec!["b1".into(), "b2".into()]
        )
    );
    relay.stop().await;
}

/// A destination that is down, refuses the relay, or says nothing at the start.
async fn others_start_and_it_joins_by_itself(bad: Script, mends: impl FnOnce()) {
    let store = one_lane();
    commit(&store, &[("bad", "k", "1"), ("good", "k", "2")]);
    let (bad, other) = (Arc::new(bad), Arc::new(good()));
    let relay = start(&store, &[("bad", &bad), ("good", &other)]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        other.names(),
        ["2"],
        "within a second, whatever the first one does"
    );
    sleep(Duration::from_secs(600)).await;
    assert!(!relay.health.ready());
    let report = relay.health.report();
    assert!(report.started && report.store_error.is_none(), "{report:?}");
    assert!(
        report.routes["bad"].open && !report.routes["good"].open,
        "{report:?}"
    );
    assert!(report.routes["bad"].last_error.is_some());
    commit(&store, &[("good", "k", "3"), ("bad", "k", "4")]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(other.names(), ["2", "3"]);
    assert!(bad.names().is_empty());
    mends();
    // The longest pause of the breaker, and the time limit of a check that hangs.
    sleep(Duration::from_secs(60)).await;
    assert!(relay.health.ready(), "{:?}", relay.health.report());
    assert_eq!(bad.names(), ["1", "4"]);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn i7_start_with_one_destination_down() {
    let down = set();
    let bad = failing(ErrorKind::Unavailable, &down);
    others_start_and_it_joins_by_itself(bad, || down.store(false, Ordering::Relaxed)).await;
}

#[tokio::test(start_paused = true)]
async fn i7_start_with_one_destination_that_refuses_the_relay() {
    let refuses = set();
    let bad = failing(ErrorKind::Unauthenticated, &refuses);
    others_start_and_it_joins_by_itself(bad, || refuses.store(false, Ordering::Relaxed)).await;
}

/// Its check alone says no: nothing may be published there all the same.
#[tokio::test(start_paused = true)]
async fn a_destination_whose_check_refuses_gets_nothing() {
    let refuses = set();
    let check = Arc::clone(&refuses);
    let bad = good().check(move || {
        if check.load(Ordering::Relaxed) {
            return Err(error(ErrorKind::Configuration));
        }
        Ok(())
    });
    others_start_and_it_joins_by_itself(bad, || refuses.store(false, Ordering::Relaxed)).await;
}

#[tokio::test(start_paused = true)]
async fn i7_start_with_one_destination_that_says_nothing() {
    let hangs = set();
    let publish = Arc::clone(&hangs);
    let bad = Script::new(OrderClass::InFlight, move |_| {
        if publish.load(Ordering::Relaxed) {
            return Outcome::Failed(error(ErrorKind::Timeout));
        }
        Outcome::delivered()
    })
    .check_hanging_while(&hangs);
    others_start_and_it_joins_by_itself(bad, || hangs.store(false, Ordering::Relaxed)).await;
}

#[tokio::test(start_paused = true)]
async fn when_all_destinations_refuse_the_first_refusal_ends_the_start() {
    let store = one_lane();
    commit(&store, &[("a", "k", "1")]);
    let refuses = set();
    let a = Arc::new(failing(ErrorKind::Unauthenticated, &refuses));
    let b = Arc::new(failing(ErrorKind::Configuration, &refuses));
    let relay = start(&store, &[("a", &a), ("b", &b)]);
    let ended = timeout(Duration::from_secs(5), relay.task).await;
    let refusal = ended.expect("at once").unwrap().unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Unauthenticated);
    assert!(refusal.to_string().contains("route"), "{refusal}");
    assert!(a.calls.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_start_waits_for_nobody() {
    let store = one_lane();
    let hangs = set();
    let (bad, other) = (
        Arc::new(good().check_hanging_while(&hangs)),
        Arc::new(good()),
    );
    let relay = start(&store, &[("bad", &bad), ("good", &other)]);
    sleep(Duration::from_millis(100)).await;
    assert!(!relay.health.ready(), "one has not been asked yet");
    let ended = timeout(Duration::from_secs(1), relay.stop()).await;
    assert!(ended.is_ok());
}

/// One that fails later than the start.
#[tokio::test(start_paused = true)]
async fn i7_one_destination_down_while_the_others_flow() {
    let store = one_lane();
    let down = Arc::new(AtomicBool::new(false));
    let (a, b) = (
        Arc::new(failing(ErrorKind::Unavailable, &down)),
        Arc::new(good()),
    );
    let relay = start(&store, &[("a", &a), ("b", &b)]);
    commit(&store, &[("a", "k", "a1"), ("b", "k", "b1")]);
    drained(&store).await;
    down.store(true, Ordering::Relaxed);
    for n in 2..50 {
        commit(
            &store,
            &[("a", "k", &format!("a{n}")), ("b", "k", &format!("b{n}"))],
        );
        sleep(Duration::from_millis(100)).await;
        assert_eq!(b.names().len(), n, "in its usual time");
    }
    assert_eq!(a.names(), ["a1"]);
    down.store(false, Ordering::Relaxed);
    drained(&store).await;
    assert_eq!(
        a.names(),
        (1..50).map(|n| format!("a{n}")).collect::<Vec<_>>()
    );
    let attempts = a
        .delivered
        .lock()
        .unwrap()
        .iter()
        .map(|seen| seen.attempts)
        .max();
    assert!(
        attempts <= Some(2),
        "an outage burns no attempts: {attempts:?}"
    );
    relay.stop().await;
}
