//! Dead letters of stores that keep order: holding, skipping, requeue and discard.

use std::{collections::BTreeSet, time::Duration};

use outbox_core::{BatchSource, DeadFilter, DeadReason, Event, Verdict};

use crate::{
    ordered_suite::relay::Relay,
    store_suite::{
        StoreBench,
        bench::{LONG, commit, dead, each, event, retry, text, texts},
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

/// Dead letters, held events and keys on hold.
async fn parked(relay: &Relay) -> [u64; 3] {
    let state = relay.worker.store.inspect(100).await.expect("inspect");
    [state.dead, state.held, state.blocked_keys].map(|count| count.value)
}

/// Case key-blocked-forever: followers of a dead event wait, visibly, while others flow.
pub async fn key_blocked_forever(bench: &StoreBench) {
    let (outbox, mut relay) = held(bench).await;
    commit(&*outbox, &[event("A", "A4"), event("B", "B1")]).await;
    relay
        .work(BatchSource::Stream, &["A4", "B1"], |_| Verdict::Done)
        .await;
    relay.assert_nothing_due().await;
    assert_eq!(parked(&relay).await, [1, 3, 1]);
    let store = &relay.worker.store;
    assert_eq!(store.inspect(100).await.expect("inspect").pending.value, 0);
    let page = outbox_core::Page {
        after: None,
        limit: 9,
    };
    assert_eq!(store.list(&ALL(), page).await.expect("list").len(), 1);
    assert_eq!(relay.worker.lane().blocked().await.expect("blocked"), ["A"]);
}

/// Case key-blocked-forever: what orders events is the aggregate they are of, as many keys as there
/// are aggregates, and a dead event holds those of its own aggregate and no other.
pub async fn key_blocked_forever_keys_are_the_aggregates(bench: &StoreBench) {
    const EVENTS: usize = 10_000;
    const AGGREGATES: usize = 137;
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let aggregate = |n: usize| format!("order-{}", n % AGGREGATES);
    let events: Vec<Event> = (0..EVENTS)
        .map(|n| {
            let event = Event::new("t", "Tested").aggregate("order", aggregate(n));
            event.bytes(n.to_string()).expect("valid")
        })
        .collect();
    commit(&*outbox, &events).await;

    let mut keys = BTreeSet::new();
    let mut done = 0;
    let others = (0..EVENTS).filter(|n| n % AGGREGATES != 0).count();
    while done < others {
        let batch = relay.worker.claim_some(500).await;
        keys.extend(batch.events.iter().map(|event| event.key.clone()));
        let settlements = relay.verdicts(&batch, |event| match text(event).as_str() {
            "0" => dead(DeadReason::Rejected, "no", true),
            _ => Verdict::Done,
        });
        let delivered = settlements.iter().filter(|of| of.verdict == Verdict::Done);
        done += delivered.count();
        relay.settle(&batch, &settlements).await;
    }
    let aggregates: BTreeSet<_> = (0..EVENTS).map(|n| Some(aggregate(n))).collect();
    assert_eq!((keys.len(), &keys), (AGGREGATES, &aggregates));
    relay.assert_nothing_due().await;
    let held = u64::try_from(EVENTS - others - 1).expect("a count");
    assert_eq!(parked(&relay).await, [1, held, 1]);
}

/// Case key-blocked-forever: a requeued event goes before its held followers, and its key flows again.
pub async fn key_blocked_forever_requeue_frees_it(bench: &StoreBench) {
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
    assert_eq!(parked(&relay).await, [0, 0, 0]);
    commit(&*outbox, &[event("A", "A4")]).await;
    relay
        .work(BatchSource::Stream, &["A4"], |_| Verdict::Done)
        .await;
}

/// Case key-blocked-forever: what waits behind another of its key is told as held: behind one that is
/// dead still when it was requeued itself, and behind one that is in flight.
pub async fn key_blocked_forever_what_waits_behind_is_held(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["A1", "A2", "A3", "A4"].map(|n| event("A", n))).await;
    let batch = relay
        .expect(BatchSource::Stream, &["A1", "A2", "A3", "A4"])
        .await;
    // Two of a key die at once when neither can be read, or each killed its process.
    let both = each(&batch, |event| match text(event).as_str() {
        "A1" | "A2" => dead(DeadReason::Rejected, "no", true),
        _ => Verdict::Hold,
    });
    relay.settle(&batch, &both).await;
    assert_eq!(parked(&relay).await, [2, 2, 1]);

    let second = DeadFilter {
        ids: vec![batch.events[1].id],
        ..ALL()
    };
    let store = std::sync::Arc::clone(&relay.worker.store);
    assert_eq!(store.requeue(&second, 10).await.expect("requeue"), 1);
    relay.assert_nothing_due().await;
    let state = store.inspect(100).await.expect("inspect");
    assert_eq!((state.pending.value, state.scheduled.value), (0, 0));
    assert_eq!(state.oldest_pending, Duration::ZERO);
    assert_eq!(parked(&relay).await, [1, 3, 1]);

    assert_eq!(store.requeue(&ALL(), 10).await.expect("requeue"), 1);
    let state = store.inspect(100).await.expect("inspect");
    assert_eq!((state.pending.value, state.held.value), (1, 3));
    for one in ["A1", "A2"] {
        relay
            .work(BatchSource::Parked, &[one], |_| Verdict::Done)
            .await;
    }
    let state = store.inspect(100).await.expect("inspect");
    assert_eq!((state.pending.value, state.held.value), (2, 0));
    let third = relay.worker.claim_some(1).await;
    assert_eq!(texts(&third.events), ["A3"]);
    let state = store.inspect(100).await.expect("inspect");
    assert_eq!((state.pending.value, state.held.value), (0, 1));
    let done = relay.verdicts(&third, |_| Verdict::Done);
    relay.settle(&third, &done).await;
    assert_eq!(texts(&relay.deliver(1).await), ["A4"]);
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

/// Case key-blocked-forever: discarding the dead event frees its followers, in order.
pub async fn key_blocked_forever_discard_frees_it(bench: &StoreBench) {
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
    assert_eq!(parked(&relay).await, [0, 0, 0]);
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

/// Case key-blocked-forever: with skip, the followers that were held while the event was tried go when
/// it is dead, and nothing holds the key.
pub async fn key_blocked_forever_skip_frees_it(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let all = ["A1", "A2", "A3", "A4", "A5"];
    commit(&*outbox, &all.map(|n| event("A", n))).await;
    let again = |_: &_| retry(Duration::ZERO);
    relay.work(BatchSource::Stream, &all, again).await;
    assert_eq!(parked(&relay).await, [0, 4, 1]);
    relay.work(BatchSource::Parked, &["A1"], again).await;
    let skip = |event: &outbox_core::StoredEvent| {
        assert_eq!(event.attempts, 3);
        dead(DeadReason::AttemptsExhausted, "no", false)
    };
    relay.work(BatchSource::Parked, &["A1"], skip).await;
    let settled = relay
        .work(BatchSource::Parked, &all[1..], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
    assert_eq!(parked(&relay).await, [1, 0, 0]);
    commit(&*outbox, &[event("A", "A6")]).await;
    relay
        .work(BatchSource::Stream, &["A6"], |_| Verdict::Done)
        .await;
}
