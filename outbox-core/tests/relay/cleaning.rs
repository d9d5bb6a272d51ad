//! The relay removes what is delivered and old, while it works.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    CleanRequest, Enqueue as _, Enqueued, ErrorKind, OrderClass, Outcome, RelayConfig, Retention,
    Route,
};
use outbox_testkit::{
    faulty::{FaultyStore, StoreCall, StoreFault},
    log::{Lines, number},
    memory::MemoryStore,
};
use tokio::time::{Instant, sleep};

use crate::script::{Running, Script, commit, drained, event, one_lane, run_on};

const REMOVED: &str = "removed what was delivered and old";
const MINUTE: Duration = Duration::from_secs(60);

fn relay(store: &FaultyStore, retention: Duration) -> Running {
    relay_with(
        store,
        RelayConfig {
            retention,
            ..RelayConfig::default()
        },
    )
}

fn relay_with(store: &FaultyStore, config: RelayConfig) -> Running {
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |_| Outcome::delivered()));
    run_on(
        Arc::new(store.clone()),
        [Route::new("r", publisher)],
        config,
    )
}

fn stores() -> (MemoryStore, FaultyStore) {
    let memory = one_lane();
    (memory.clone(), FaultyStore::new(Arc::new(memory)))
}

/// How many delivered events are left in the store. Removes them.
async fn left(memory: &MemoryStore) -> u64 {
    let all = CleanRequest {
        retention: Duration::ZERO,
        rows_max: u32::MAX,
        ..CleanRequest::default()
    };
    memory.clean(&all).await.unwrap().events
}

fn commit_many(memory: &MemoryStore, count: usize) {
    let mut tx = memory.begin();
    for n in 0..count {
        tx.enqueue(&event("t", Some(&n.to_string()), "x"));
    }
    tx.commit();
}

#[tokio::test(start_paused = true)]
async fn delivered_events_are_kept_for_their_retention_and_then_removed_in_steps() {
    let lines = Lines::default();
    let _guard = lines.follow();
    let (memory, store) = stores();
    let steps = |store: &FaultyStore| store.script().count(StoreCall::Clean);
    commit_many(&memory, 5_000);
    let relay = relay(&store, 60 * MINUTE);
    drained(&memory).await;
    sleep(55 * MINUTE).await;
    let rounds = steps(&store);
    assert!((45..=65).contains(&rounds), "one a minute: {rounds}");
    assert_eq!(lines.with(REMOVED).len(), 0, "nothing is told of nothing");
    sleep(10 * MINUTE).await;
    assert_eq!(left(&memory).await, 0);
    let told: u64 = lines
        .with(REMOVED)
        .iter()
        .map(|line| number(line, "events"))
        .sum();
    assert_eq!(told, 5_000);
    relay.stop().await;
    let rounds = steps(&store) - rounds;
    let more = 5_000 / u64::from(CleanRequest::ROWS_MAX);
    let expected = more + 7..=more + 12;
    assert!(expected.contains(&rounds), "{rounds}, {more} of them more");
}

/// A relay that is never idle, and whose store grows as fast as it is cleaned.
#[tokio::test(start_paused = true)]
async fn it_cleans_under_load() {
    let lines = Lines::default();
    let _guard = lines.follow();
    let (memory, store) = stores();
    store.script().rule(|call, _| {
        (*call == StoreCall::Clean).then_some(StoreFault::Slow(Duration::from_millis(20)))
    });
    let relay = relay(&store, Duration::ZERO);
    let began = Instant::now();
    let mut written = 0;
    while began.elapsed() < 5 * MINUTE {
        commit_many(&memory, 200);
        written += 200;
        sleep(Duration::from_millis(500)).await;
    }
    drained(&memory).await;
    sleep(2 * MINUTE).await;
    assert_eq!(left(&memory).await, 0);
    let steps = store.script().count(StoreCall::Clean);
    // Full ones, and a last one a round.
    assert!(
        steps <= written / u64::from(CleanRequest::ROWS_MAX) + 2 * 9,
        "{steps} steps"
    );
    let told = lines.with(REMOVED);
    assert!((4..=8).contains(&told.len()), "{told:?}");
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_is_followed_by_a_pause_three_times_as_long() {
    let (memory, store) = stores();
    commit_many(&memory, 20_000);
    let publisher_done = relay(&store, 60 * MINUTE);
    drained(&memory).await;
    publisher_done.stop().await;
    let took = Duration::from_millis(300);
    store
        .script()
        .rule(move |call, _| (*call == StoreCall::Clean).then_some(StoreFault::Slow(took)));
    let config = RelayConfig {
        retention: Duration::ZERO,
        // Only the pauses between steps are left to see.
        clean_interval: Duration::from_millis(1),
        ..RelayConfig::default()
    };
    let relay = relay_with(&store, config);
    let began = Instant::now();
    while store.script().count(StoreCall::Clean) < 11 {
        sleep(Duration::from_millis(1)).await;
    }
    let ten = began.elapsed();
    assert!((took * 39..took * 41).contains(&ten), "{ten:?}");
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dedup_keys_are_kept_for_a_time_of_their_own() {
    let (memory, store) = stores();
    let config = RelayConfig {
        retention: Duration::ZERO,
        dedup_retention: 60 * MINUTE,
        ..RelayConfig::default()
    };
    let relay = relay_with(&store, config);
    let write = async || {
        let event = outbox_core::Event::new("t", "T").dedup_key("once");
        let mut tx = memory.begin();
        let event = event.bytes("x").unwrap();
        let told = memory.enqueue(&mut tx, &event).await.unwrap();
        tx.commit();
        told
    };
    assert_eq!(write().await, Enqueued::Written);
    sleep(50 * MINUTE).await;
    assert_eq!(write().await, Enqueued::Duplicate);
    sleep(15 * MINUTE).await;
    assert_eq!(write().await, Enqueued::Written);
    relay.stop().await;
}

/// What can't be cleaned is told in few lines, and is no reason to say that the relay is not well.
#[tokio::test(start_paused = true)]
async fn i8_a_store_that_can_not_be_cleaned_is_told_and_changes_nothing_else() {
    for (kind, told) in [
        (ErrorKind::Unauthorized, 1..=1),
        (ErrorKind::Timeout, 25..=65),
    ] {
        let lines = Lines::default();
        let _guard = lines.follow();
        let (memory, store) = stores();
        store
            .script()
            .rule(move |call, _| (*call == StoreCall::Clean).then_some(StoreFault::Fail(kind)));
        let relay = relay(&store, Duration::ZERO);
        for _ in 0..60 {
            commit(&memory, &[("t", "k", "1")]);
            sleep(MINUTE).await;
            assert!(relay.health.ready(), "{:?}", relay.health.report());
        }
        let failed = lines.with("can't be removed");
        assert!(told.contains(&failed.len()), "{kind}: {failed:?}");
        assert!(failed[0].contains("remedy="), "{failed:?}");
        store.script().clear();
        sleep(2 * MINUTE).await;
        let again = lines.with("cleaning works again");
        assert_eq!(again.len(), 1);
        assert!(
            (50..=70).contains(&number(&again[0], "failures")),
            "{again:?}"
        );
        assert_eq!(left(&memory).await, 0);
        relay.stop().await;
    }
}

/// A stop does not wait for a step, and events flow while one hangs.
#[tokio::test(start_paused = true)]
async fn a_step_that_hangs_holds_up_neither_events_nor_a_stop() {
    let (memory, store) = stores();
    store
        .script()
        .rule(|call, _| (*call == StoreCall::Clean).then_some(StoreFault::Hang));
    let relay = relay(&store, Duration::ZERO);
    sleep(2 * MINUTE).await;
    assert_eq!(store.script().count(StoreCall::Clean), 1);
    commit(&memory, &[("t", "k", "1")]);
    drained(&memory).await;
    let stopping = Instant::now();
    relay.stop().await;
    assert!(stopping.elapsed() < Duration::from_secs(1));
}
