//! Cleaning: what is delivered and old goes, in bounded steps, and nothing else does.

use std::{cell::Cell, time::Duration};

use futures::future::join_all;
use outbox_core::{
    CleanRequest, Cleaned, DeadFilter, DeadReason, Enqueued, Event, OutboxStore, Verdict,
};
use tokio::time::{Instant, sleep};

use crate::{
    store_suite::bench::{
        LONG, PATIENCE, StoreBench, Worker, commit, dead, each, event, events, retry, text, texts,
    },
    wait::eventually,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Delivered events of any age, and no dedup key.
fn delivered(rows_max: u32) -> CleanRequest {
    CleanRequest {
        retention: Duration::ZERO,
        dedup_retention: HOUR,
        rows_max,
    }
}

/// Steps until nothing is left to do.
async fn clean_all(store: &dyn OutboxStore, request: &CleanRequest) -> Cleaned {
    let mut all = Cleaned::default();
    let ended = eventually(PATIENCE, async || {
        loop {
            let step = store.clean(request).await.expect("clean");
            assert!(step.events + step.dedup_keys <= 2 * u64::from(request.rows_max));
            assert!(
                !step.busy || step.is_empty(),
                "a busy step does nothing: {step:?}"
            );
            all = all.and(step);
            if step.busy {
                return None;
            }
            if !step.more {
                return Some(all);
            }
        }
    });
    ended.await.expect("cleaning comes to an end")
}

async fn removable(store: &dyn OutboxStore, request: &CleanRequest) -> Cleaned {
    store.removable(request).await.expect("removable")
}

/// How many delivered events the store has to clean, if so many were delivered.
fn kept(bench: &StoreBench, count: u64) -> u64 {
    if bench.gates().keeps_delivered {
        count
    } else {
        0
    }
}

/// Pending, scheduled, in flight and dead events stay whatever the request; the store goes on.
pub async fn cleaning_takes_delivered_events_only(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let store = &*worker.store;
    assert_eq!(
        clean_all(store, &delivered(100)).await,
        Cleaned::default(),
        "nothing there"
    );

    commit(&*outbox, &events(8)).await;
    let batch = worker.claim_some(6).await;
    let settlements = each(&batch, |event| match text(event).as_str() {
        "payload-1" => dead(DeadReason::Rejected, "no", true),
        "payload-3" => retry(HOUR),
        _ => Verdict::Done,
    });
    worker.settle(&batch, &settlements).await;
    let in_flight = worker.claim_some(1).await;

    let young = CleanRequest {
        retention: HOUR,
        ..delivered(100)
    };
    assert_eq!(
        clean_all(store, &young).await,
        Cleaned::default(),
        "too young"
    );
    assert_eq!(removable(store, &young).await, Cleaned::default());
    let would = removable(store, &delivered(1)).await;
    let cleaned = clean_all(store, &delivered(100)).await;
    assert_eq!(would, cleaned, "was told before, and nothing was done then");
    assert_eq!(cleaned.events, kept(bench, 4));
    assert_eq!((cleaned.dedup_keys, cleaned.partitions), (0, 0));
    assert_eq!(clean_all(store, &delivered(100)).await.events, 0);

    let state = store.inspect(100).await.expect("inspect");
    let counts = [state.pending, state.scheduled, state.in_flight, state.dead];
    assert_eq!(counts.map(|count| count.value), [1, 1, 1, 1]);
    let settled = worker.settle_all(&in_flight, &Verdict::Done).await;
    assert_eq!((settled.applied, settled.lost), (1, 0));
    assert_eq!(texts(&worker.drain_until(1).await), ["payload-7"]);
    commit(&*outbox, &[event("key-8", "payload-8")]).await;
    assert_eq!(texts(&worker.drain_until(1).await), ["payload-8"]);
    assert_eq!(
        clean_all(store, &delivered(100)).await.events,
        kept(bench, 3)
    );

    worker.lane().release().await.expect("release");
    let next = Worker::start(&*outbox, "next").await;
    next.assert_drained().await;
    let all = DeadFilter::default();
    assert_eq!(store.count(&all).await.expect("count"), 1);
    assert_eq!(store.requeue(&all, 10).await.expect("requeue"), 1);
    assert_eq!(texts(&next.drain_until(1).await), ["payload-1"]);
    assert_eq!(
        clean_all(store, &delivered(100)).await.events,
        kept(bench, 1)
    );
}

/// The age counts from the delivery, on the store's clock.
pub async fn i12_cleaning_counts_the_age_from_the_delivery(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    // Both are old; one was delivered a while ago.
    commit(&*outbox, &events(2)).await;
    let batch = worker.claim_some(1).await;
    worker.settle_all(&batch, &Verdict::Done).await;
    sleep(Duration::from_millis(1_500)).await;
    let second = Instant::now();
    let batch = worker.claim_some(1).await;
    worker.settle_all(&batch, &Verdict::Done).await;
    let request = CleanRequest {
        retention: second.elapsed() + Duration::from_millis(1_200),
        ..delivered(100)
    };
    let cleaned = clean_all(&*worker.store, &request).await;
    assert_eq!(cleaned.events, kept(bench, 1));
    let cleaned = clean_all(&*worker.store, &delivered(100)).await;
    assert_eq!(cleaned.events, kept(bench, 1), "the other one was there");
}

/// A step looks at no more rows than asked for, says that more is waiting, and the steps reach all:
/// also what lies behind rows that must stay.
pub async fn i8_a_cleaning_step_is_bounded(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(60)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(30).await;
    worker
        .settle_all(&batch, &dead(DeadReason::Rejected, "no", false))
        .await;
    worker.drain_until(30).await;

    let mut all = Cleaned::default();
    let mut steps = 0;
    loop {
        let step = worker.store.clean(&delivered(7)).await.expect("clean");
        assert!(step.events <= 7, "{step:?}");
        all = all.and(step);
        steps += 1;
        if !step.more {
            break;
        }
        assert!(steps < 100, "no end: {all:?}");
    }
    assert_eq!(all.events, kept(bench, 30));
    let dead = worker.store.count(&DeadFilter::default()).await;
    assert_eq!(dead.expect("count"), 30);
}

/// A key is known as long as asked for, and then free again; its event's age does not count.
pub async fn dedup_keys_are_forgotten_when_old(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let keyed = |key: &str| {
        let event = Event::new("t", "Tested").key("k").dedup_key(key);
        event.bytes(key.to_owned()).expect("a valid event")
    };
    let again = async || {
        let mut tx = outbox.begin().await;
        let told = tx.enqueue(&[keyed("a"), keyed("b")]).await;
        tx.commit().await;
        told
    };
    again().await;
    let batch = worker.claim_some(1).await;
    worker.settle_all(&batch, &Verdict::Done).await;

    let cleaned = clean_all(&*worker.store, &delivered(10)).await;
    assert_eq!((cleaned.events, cleaned.dedup_keys), (kept(bench, 1), 0));
    assert_eq!(again().await, [Enqueued::Duplicate, Enqueued::Duplicate]);
    let keys_only = CleanRequest {
        retention: HOUR,
        dedup_retention: Duration::ZERO,
        rows_max: 1,
    };
    let would = removable(&*worker.store, &keys_only).await;
    assert_eq!((would.events, would.dedup_keys), (0, 2));
    let step = worker.store.clean(&keys_only).await.expect("clean");
    assert_eq!((step.events, step.dedup_keys, step.more), (0, 1, true));
    let rest = clean_all(&*worker.store, &keys_only).await;
    assert_eq!((rest.events, rest.dedup_keys), (0, 1));
    assert_eq!(again().await, [Enqueued::Written, Enqueued::Written]);
    assert_eq!(worker.drain_until(3).await.len(), 3);
}

/// Case cleanup-lock: several cleaners, writers and claims at once. No call fails, everything that
/// was delivered goes exactly once.
pub async fn cleanup_lock(bench: &StoreBench) {
    const WRITTEN: usize = 300;
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(outbox.open().await);
    }
    let written = Cell::new(false);
    let cleaners = stores.iter().map(async |store| {
        let mut events = 0;
        loop {
            let last = written.get();
            events += clean_all(&**store, &delivered(20)).await.events;
            if last {
                return events;
            }
            tokio::task::yield_now().await;
        }
    });
    let work = async {
        let mut seen = 0;
        for batch in events(WRITTEN).chunks(20) {
            commit(&*outbox, batch).await;
            seen += worker.drain().await.len();
        }
        written.set(true);
        seen
    };
    let (cleaned, seen) = futures::join!(join_all(cleaners), work);
    assert_eq!(seen, WRITTEN);
    assert_eq!(cleaned.iter().sum::<u64>(), kept(bench, WRITTEN as u64));
    worker.assert_drained().await;
}
