//! A store that is down when the relay starts.

use std::{sync::Arc, time::Duration};

use outbox_core::{ErrorKind, OrderClass, Outcome, RelayConfig, Route, STORE_CHECK_TIMEOUT};
use outbox_testkit::{
    faulty::{FaultyStore, StoreCall, StoreFault},
    log::{Lines, number},
};
use tokio::time::{Instant, sleep};

use crate::script::{Running, Script, commit, drained, one_lane, run_on};

fn start(store: &FaultyStore) -> (Running, Arc<Script>) {
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |_| Outcome::delivered()));
    let route = Route::new("r", publisher.clone());
    let store = Arc::new(store.clone());
    (run_on(store, [route], RelayConfig::default()), publisher)
}

#[tokio::test(start_paused = true)]
async fn i8_a_store_that_is_down_at_the_start_is_folded_and_told_once_when_it_answers() {
    let lines = Lines::default();
    let _guard = lines.follow();
    let memory = one_lane();
    commit(&memory, &[("t", "k", "1")]);
    let store = FaultyStore::new(Arc::new(memory.clone()));
    let up_at = Instant::now() + Duration::from_secs(50);
    store.script().rule(move |call, _| {
        let is_down = *call == StoreCall::Check && Instant::now() < up_at;
        is_down.then_some(StoreFault::Fail(ErrorKind::Unavailable))
    });
    let (relay, publisher) = start(&store);
    sleep(Duration::from_secs(40)).await;
    assert!(!relay.health.ready());
    let error = relay.health.report().store_error;
    assert!(error.is_some_and(|error| error.contains("unavailable")));

    drained(&memory).await;
    assert!(relay.health.ready(), "{:?}", relay.health.report());
    assert_eq!(publisher.names(), ["1"]);
    relay.stop().await;
    let failed = lines.with("store failed");
    assert_eq!(failed.len(), 2, "two lines a minute: {failed:?}");
    let [again] = &lines.with("store answers again")[..] else {
        panic!("{:?}", lines.with("store"))
    };
    let checks = store.script().count(StoreCall::Check);
    assert_eq!(number(again, "failures"), checks - 1, "all but the last");
    let down_ms = number(again, "down_ms");
    // The longest pause between two tries is 10 s.
    assert!((50_000..60_000).contains(&down_ms), "{again}");
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_check_hangs_or_panics_is_asked_again() {
    for (fault, told) in [
        (StoreFault::Panic, "the check panicked"),
        (StoreFault::Hang, "no answer in time"),
    ] {
        let memory = one_lane();
        commit(&memory, &[("t", "k", "1")]);
        let store = FaultyStore::new(Arc::new(memory.clone()));
        let rule = move |call: &StoreCall, _| (*call == StoreCall::Check).then_some(fault);
        store.script().rule(rule);
        let (relay, publisher) = start(&store);
        sleep(STORE_CHECK_TIMEOUT + Duration::from_secs(1)).await;
        let error = relay.health.report().store_error.unwrap_or_default();
        assert!(error.contains(told), "{error:?}");
        store.script().clear();
        drained(&memory).await;
        assert!(relay.health.ready(), "{:?}", relay.health.report());
        assert_eq!(publisher.names(), ["1"]);
        relay.stop().await;
    }
}

/// Lanes may be given without a word to the database, as every few seconds in the queue layout.
#[tokio::test(start_paused = true)]
async fn a_store_whose_claims_fail_is_not_ready_because_it_gives_lanes() {
    let lines = Lines::default();
    let _guard = lines.follow();
    let memory = one_lane();
    let store = FaultyStore::new(Arc::new(memory.clone()));
    let (relay, publisher) = start(&store);
    sleep(Duration::from_secs(1)).await;
    assert!(relay.health.ready());
    let rule = |call: &StoreCall, _| {
        (*call == StoreCall::Claim).then_some(StoreFault::Fail(ErrorKind::Unavailable))
    };
    store.script().rule(rule);
    commit(&memory, &[("t", "k", "1")]);
    sleep(Duration::from_secs(1)).await;
    let acquired = store.script().count(StoreCall::Acquire);
    for second in 0..60 {
        assert!(!relay.health.ready(), "ready after {second} s");
        sleep(Duration::from_secs(1)).await;
    }
    assert!(store.script().count(StoreCall::Acquire) > acquired + 5);
    assert!(lines.with("store answers again").is_empty());
    store.script().clear();
    drained(&memory).await;
    assert!(relay.health.ready(), "{:?}", relay.health.report());
    assert_eq!(publisher.names(), ["1"]);
    relay.stop().await;
    assert_eq!(lines.with("store answers again").len(), 1);
}

/// With no lane at all, only the next lanes tell that the store is back.
#[tokio::test(start_paused = true)]
async fn a_store_that_gave_no_lanes_is_ready_when_it_gives_them() {
    let memory = one_lane();
    let store = FaultyStore::new(Arc::new(memory.clone()));
    store.script().rule(|call: &StoreCall, _| {
        let is_down = matches!(call, StoreCall::Acquire | StoreCall::Claim);
        is_down.then_some(StoreFault::Fail(ErrorKind::Unavailable))
    });
    let (relay, _) = start(&store);
    sleep(Duration::from_secs(20)).await;
    assert!(!relay.health.ready());
    store.script().clear();
    store
        .script()
        .rule(|call: &StoreCall, _| (*call == StoreCall::Claim).then_some(StoreFault::Hang));
    sleep(Duration::from_secs(20)).await;
    assert!(relay.health.ready(), "{:?}", relay.health.report());
}
