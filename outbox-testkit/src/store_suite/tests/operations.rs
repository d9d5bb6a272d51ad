//! Migration, checks, inspection, waiting; I8 and I11.

use std::time::Duration;

use outbox_core::{DeadReason, Verdict};
use tokio::time::{Instant, timeout};

use crate::{
    store_suite::bench::{
        LONG, PATIENCE, StoreBench, Worker, commit, dead, each, events, retry, text,
    },
    wait::eventually,
};

/// A second migration finds nothing to do, also when two run at once.
pub async fn migrating_again_changes_nothing(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(1)).await;
    let (first, second) = (outbox.open().await, outbox.open().await);
    let (one, two) = futures::join!(first.migrate(), second.migrate());
    for migrated in [one, two, first.migrate().await] {
        let migrated = migrated.expect("migrate");
        assert!(migrated.to > 0, "{migrated:?}");
    }
    let again = second.migrate().await.expect("migrate");
    assert_eq!(again.from, again.to);
    first.check().await.expect("the store is ready");
    let worker = Worker::start(&*outbox, "relay").await;
    assert_eq!(
        worker.drain_until(1).await.len(),
        1,
        "a migration lost an event"
    );
}

/// The state tells where events are.
pub async fn inspect_tells_where_events_are(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(8)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(4).await;
    assert_eq!(batch.events.len(), 4);
    let settlements = each(&batch, |event| match text(event).as_str() {
        "payload-0" => Verdict::Done,
        "payload-1" => dead(DeadReason::Rejected, "no", true),
        _ => retry(Duration::from_secs(3_600)),
    });
    worker.settle(&batch, &settlements).await;
    let in_flight = worker.claim_some(1).await;

    let state = worker.store.inspect(100).await.expect("inspect");
    let counts = [
        state.pending,
        state.scheduled,
        state.in_flight,
        state.held,
        state.dead,
    ];
    assert_eq!(counts.map(|count| count.value), [3, 2, 1, 0, 1]);
    assert!(counts.iter().all(|count| !count.at_least), "{counts:?}");
    assert!(
        state.oldest_pending < Duration::from_secs(600),
        "{:?}",
        state.oldest_pending
    );
    let owners: Vec<_> = state
        .lanes
        .iter()
        .filter_map(|lane| lane.owner.as_deref())
        .collect();
    assert_eq!(owners, ["relay"]);
    assert!(
        state
            .lanes
            .iter()
            .any(|lane| lane.lease_left > Duration::ZERO)
    );

    worker.settle_all(&in_flight, &Verdict::Done).await;
    worker.drain_until(3).await;
    let state = worker.store.inspect(100).await.expect("inspect");
    assert_eq!((state.pending.value, state.in_flight.value), (0, 0));
    assert_eq!(state.oldest_pending, Duration::ZERO);
}

/// The age of the oldest pending event grows.
pub async fn inspect_tells_the_oldest(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(1)).await;
    let committed = Instant::now();
    let store = outbox.open().await;
    let grown = eventually(PATIENCE, async || {
        let age = store.inspect(100).await.expect("inspect").oldest_pending;
        (age >= Duration::from_millis(50)).then_some(age)
    });
    let age = grown.await.expect("the age grows");
    assert!(
        age <= committed.elapsed() + Duration::from_secs(1),
        "{age:?}"
    );
}

/// Counting stops at the bound and says so (I8).
pub async fn i8_inspect_counts_are_bounded(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(20)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(10).await;
    worker
        .settle_all(&batch, &dead(DeadReason::Rejected, "no", true))
        .await;
    let state = worker.store.inspect(5).await.expect("inspect");
    for count in [state.pending, state.dead] {
        assert_eq!((count.value, count.at_least), (5, true));
    }
    let state = worker.store.inspect(10).await.expect("inspect");
    for count in [state.pending, state.dead] {
        assert_eq!(
            (count.value, count.at_least),
            (10, false),
            "exactly the bound is not more"
        );
    }
}

/// Waiting ends by itself, events or not.
pub async fn waiting_ends(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let store = outbox.open().await;
    for _ in 0..3 {
        let waited = timeout(PATIENCE, store.wait(Duration::from_millis(20))).await;
        waited.expect("a wait did not end with its timeout");
    }
}

/// Case row-lock-during-send: no transaction is open while events are in flight (I11).
pub async fn row_lock_during_send(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(20)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let first = worker.claim_some(5).await;
    let second = worker.claim_some(5).await;
    for _ in 0..5 {
        let open = outbox.open_transactions().await;
        assert_eq!(
            open.is_some(),
            bench.gates().sessions,
            "the gate and the harness differ"
        );
        assert_eq!(
            open.unwrap_or_default(),
            0,
            "a transaction is open across a send"
        );
    }
    worker.settle_all(&first, &Verdict::Done).await;
    worker.settle_all(&second, &Verdict::Done).await;
    worker.lane().renew(&[]).await.expect("renew");
    assert_eq!(outbox.open_transactions().await.unwrap_or_default(), 0);
    assert_eq!(worker.drain_until(10).await.len(), 10);
}
