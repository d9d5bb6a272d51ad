//! Dead letters of stores that keep order: holding, skipping, requeue and discard.

use std::time::Duration;

use outbox_core::{BatchSource, DeadFilter, DeadReason, Verdict};

use crate::{
    ordered_suite::relay::Relay,
    store_suite::{
        StoreBench,
        bench::{LONG, commit, dead, event, text, texts},
    },
};

const ALL: fn() -> DeadFilter = DeadFilter::default;

/// A relay with events A1 (dead, its key held), A2 and A3 (held behind it).
async fn held(bench: &StoreBench) -> (std::sync::Arc<dyn crate::store_suite::Outbox>, Relay) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["A1", "A2", "A3"].map(|n| event("A", n))).await;
    let bury = |_: &_| dead(DeadReason::Rejected, "no", true);
    relay
        .work(BatchSource::Stream, &["A1", "A2", "A3"], bury)
        .await;
    relay.assert_nothing_due().await;
    (outbox, relay)
}

/// Case key-blocked-forever: followers of a dead event wait, visibly, while others flow.
pub async fn key_blocked_forever(bench: &StoreBench) {
    let (outbox, mut relay) = held(bench).await;
    commit(&*outbox, &[event("A", "A4"), event("B", "B1")]).await;
    relay
        .work(BatchSource::Stream, &["A4", "B1"], |_| Verdict::Done)
        .await;
    relay.assert_nothing_due().await;
    let store = &relay.worker.store;
    let state = store.inspect(100).await.expect("inspect");
    let counts = [state.dead, state.held, state.blocked_keys, state.pending];
    assert_eq!(counts.map(|count| count.value), [1, 3, 1, 0]);
    assert_eq!(
        store
            .list(
                &ALL(),
                outbox_core::Page {
                    after: None,
                    limit: 9
                }
            )
            .await
            .expect("list")
            .len(),
        1
    );
    assert_eq!(relay.worker.lane().blocked().await.expect("blocked"), ["A"]);
}

/// A requeued event goes before its held followers, and its key flows again.
pub async fn i5_requeue_goes_before_its_followers(bench: &StoreBench) {
    let (outbox, mut relay) = held(bench).await;
    assert_eq!(
        relay
            .worker
            .store
            .requeue(&ALL(), 10)
            .await
            .expect("requeue"),
        1
    );
    relay
        .work(BatchSource::Parked, &["A1"], |event| {
            assert_eq!((event.attempts, event.crashes), (1, 0));
            Verdict::Done
        })
        .await;
    let settled = relay
        .work(BatchSource::Parked, &["A2", "A3"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
    commit(&*outbox, &[event("A", "A4")]).await;
    relay
        .work(BatchSource::Stream, &["A4"], |_| Verdict::Done)
        .await;
}

/// A requeued event that dies again holds its followers again.
pub async fn i5_a_requeued_event_may_die_again(bench: &StoreBench) {
    let (_outbox, mut relay) = held(bench).await;
    for _ in 0..2 {
        assert_eq!(
            relay
                .worker
                .store
                .requeue(&ALL(), 10)
                .await
                .expect("requeue"),
            1
        );
        let bury = |_: &_| dead(DeadReason::Rejected, "again", true);
        let settled = relay.work(BatchSource::Parked, &["A1"], bury).await;
        assert!(settled.unblocked.is_empty());
        relay.assert_nothing_due().await;
    }
}

/// Discarding the dead event frees its followers, in order.
pub async fn i5_discard_frees_the_followers(bench: &StoreBench) {
    let (outbox, mut relay) = held(bench).await;
    assert_eq!(
        relay
            .worker
            .store
            .discard(&ALL(), 10)
            .await
            .expect("discard"),
        1
    );
    let settled = relay
        .work(BatchSource::Parked, &["A2", "A3"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
    commit(&*outbox, &[event("A", "A4")]).await;
    relay
        .work(BatchSource::Stream, &["A4"], |_| Verdict::Done)
        .await;
    relay.assert_nothing_due().await;
}

/// Discarding a dead event without followers frees its key by the next claim's settle.
pub async fn a_key_freed_by_an_operator_is_named(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &[event("A", "A1")]).await;
    relay
        .work(BatchSource::Stream, &["A1"], |_| {
            dead(DeadReason::Rejected, "no", true)
        })
        .await;
    assert_eq!(
        relay
            .worker
            .store
            .discard(&ALL(), 10)
            .await
            .expect("discard"),
        1
    );
    commit(&*outbox, &[event("B", "B1")]).await;
    let settled = relay
        .work(BatchSource::Stream, &["B1"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
}

/// Skip: followers go on without the dead event, which may come later and holds nobody then.
pub async fn i5_skip_lets_followers_go(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["A1", "A2"].map(|n| event("A", n))).await;
    let skip = |event: &outbox_core::StoredEvent| match text(event).as_str() {
        "A1" => dead(DeadReason::Rejected, "no", false),
        _ => Verdict::Done,
    };
    relay.work(BatchSource::Stream, &["A1", "A2"], skip).await;
    assert!(
        relay
            .worker
            .lane()
            .blocked()
            .await
            .expect("blocked")
            .is_empty()
    );
    assert_eq!(
        relay
            .worker
            .store
            .requeue(&ALL(), 10)
            .await
            .expect("requeue"),
        1
    );
    commit(&*outbox, &[event("A", "A3")]).await;
    let mut done = texts(&relay.deliver(2).await);
    done.sort();
    assert_eq!(done, ["A1", "A3"]);
    relay.assert_nothing_due().await;
}

/// Skip of a retried event frees the followers that were held behind it.
pub async fn i5_skip_frees_what_was_held(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["A1", "A2"].map(|n| event("A", n))).await;
    let again = |_: &_| crate::store_suite::bench::retry(Duration::ZERO);
    relay.work(BatchSource::Stream, &["A1", "A2"], again).await;
    let skip = |_: &_| dead(DeadReason::AttemptsExhausted, "no", false);
    relay.work(BatchSource::Parked, &["A1"], skip).await;
    let settled = relay
        .work(BatchSource::Parked, &["A2"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
    assert_eq!(relay.worker.store.count(&ALL()).await.expect("count"), 1);
}
