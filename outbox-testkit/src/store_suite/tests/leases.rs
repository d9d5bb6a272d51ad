//! I6, I9: leases, fences and crashes.

use std::{collections::BTreeSet, time::Duration};

use outbox_core::{Batch, DeadFilter, DeadReason, ErrorKind, Verdict};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    store_suite::bench::{
        LONG, PATIENCE, SHORT, StoreBench, Worker, all, commit, dead, event, events, limit, retry,
        text, texts,
    },
    wait::eventually,
};

/// Case crash-holds-lock: a relay that died with events in flight loses them after its lease; the
/// one that takes over gets them all, under the same name as well.
pub async fn crash_holds_lock(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &events(5)).await;
    let dying = Worker::start(&*outbox, "relay").await;
    assert_eq!(dying.claim_some(10).await.events.len(), 5);
    drop(dying);
    let next = Worker::start(&*outbox, "relay").await;
    let mut seen = texts(&next.drain_until(5).await);
    seen.sort();
    assert_eq!(
        seen,
        [
            "payload-0",
            "payload-1",
            "payload-2",
            "payload-3",
            "payload-4"
        ]
    );
    next.assert_drained().await;
}

/// Case lease-expires-slow-publish: who renews keeps its events far beyond the lease.
pub async fn lease_expires_slow_publish(bench: &StoreBench) {
    let lease = Duration::from_millis(1_000);
    let outbox = bench.fresh(lease, 1).await;
    commit(&*outbox, &events(3)).await;
    let slow = Worker::start(&*outbox, "slow").await;
    let batch = slow.claim_some(10).await;
    let mut other = Worker::idle(&*outbox, "other").await;
    let end = Instant::now() + lease * 3;
    while Instant::now() < end {
        let lost = slow.lane().renew(&[batch.token]).await.expect("renew");
        assert!(lost.is_empty(), "a renewed lease was lost");
        other.acquire().await;
        for lane in &other.lanes {
            let stolen = lane.claim(limit(10)).await.expect("claim");
            assert!(
                stolen.is_empty(),
                "events in flight were taken: {:?}",
                texts(&stolen.events)
            );
        }
        sleep(lease / 10).await;
    }
    let settled = slow.settle_all(&batch, &Verdict::Done).await;
    assert_eq!((settled.applied, settled.lost), (3, 0));
}

/// Whoever was overtaken changes nothing, whatever it wants to write (I6).
pub async fn i6_late_settle_changes_nothing(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    let late_verdicts = [
        Verdict::Done,
        Verdict::Return,
        retry(Duration::from_secs(3_600)),
        dead(DeadReason::Rejected, "late", true),
    ];
    for (round, late) in late_verdicts.into_iter().enumerate() {
        commit(&*outbox, &[event("k", &format!("event {round}"))]).await;
        let overtaken = Worker::start(&*outbox, &format!("overtaken-{round}")).await;
        let old = overtaken.claim_some(10).await;
        let owner = Worker::start(&*outbox, &format!("owner-{round}")).await;
        let new = owner.claim_some(10).await;
        assert_eq!(new.events[0].id, old.events[0].id);

        match overtaken.lane().settle(old.token, &all(&old, &late)).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}"),
            Ok(settled) => assert_eq!((settled.applied, settled.lost), (0, 1), "{late:?}"),
        }
        assert_eq!(
            owner
                .store
                .count(&DeadFilter::default())
                .await
                .expect("count"),
            0
        );
        let settled = owner.settle_all(&new, &Verdict::Done).await;
        assert_eq!(
            (settled.applied, settled.lost),
            (1, 0),
            "the owner was disturbed by {late:?}"
        );
        owner.assert_drained().await;
        owner.lane().release().await.expect("release");
    }
}

/// A late renewal is told that the batch is lost, and takes nothing back.
pub async fn i6_late_renew_is_told(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    let overtaken = Worker::start(&*outbox, "overtaken").await;
    let old = overtaken.claim_some(10).await;
    let owner = Worker::start(&*outbox, "owner").await;
    let new = owner.claim_some(10).await;
    match overtaken.lane().renew(&[old.token]).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}"),
        Ok(lost) => assert_eq!(lost, [old.token]),
    }
    let settled = owner.settle_all(&new, &Verdict::Done).await;
    assert_eq!(settled.applied, 1);
}

/// Case attempts-not-persisted: the counter rises by the claim, before any work is done.
pub async fn i9_attempts_are_counted_before_the_work(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    for death in 0..3 {
        let dying = Worker::start(&*outbox, &format!("relay-{death}")).await;
        let batch = dying.claim_some(10).await;
        let event = &batch.events[0];
        assert_eq!((event.attempts, event.crashes), (death + 1, death));
    }
}

/// An event that kills its process ends up alone, with its deaths counted, and can be buried; the
/// others get through, those behind it too.
pub async fn i9_crash_suspects_are_isolated(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &events(8)).await;
    let mut delivered = BTreeSet::new();
    let mut sizes = Vec::new();
    for deaths in 0..6 {
        let worker = Worker::start(&*outbox, &format!("relay-{deaths}")).await;
        let fatal = deliver_until(&worker, "payload-5", &mut delivered).await;
        let poison = fatal.events.iter().find(|event| text(event) == "payload-5");
        assert_eq!(poison.map(|event| event.crashes), Some(deaths));
        sizes.push(fatal.events.len());
        if deaths >= 3 && fatal.events.len() == 1 {
            let buried = dead(DeadReason::Crashed, "killed its process", true);
            worker.settle_all(&fatal, &buried).await;
            let rest = worker.drain_until(7 - delivered.len()).await;
            delivered.extend(texts(&rest));
            worker.assert_drained().await;
            break;
        }
    }
    assert_eq!(
        delivered.len(),
        7,
        "{delivered:?}; batches with the poison: {sizes:?}"
    );
    assert_eq!((sizes[0], sizes.last()), (8, Some(&1)), "{sizes:?}");
    assert!(sizes.is_sorted_by(|a, b| a >= b), "ever smaller: {sizes:?}");
}

/// Delivers until the poison is in the batch; gives that batch, unsettled.
async fn deliver_until(worker: &Worker, poison: &str, delivered: &mut BTreeSet<String>) -> Batch {
    let fatal = eventually(PATIENCE, async || {
        let batch = worker.claim(100).await;
        if texts(&batch.events).iter().any(|of| of == poison) {
            return Some(batch);
        }
        if !batch.is_empty() {
            worker.settle_all(&batch, &Verdict::Done).await;
            for event in &batch.events {
                assert!(
                    delivered.insert(text(event)),
                    "{} came after it was done",
                    text(event)
                );
            }
        }
        None
    });
    fatal.await.expect("the poison comes back")
}

/// Any settle clears the crash mark: a slow but harmless event does not add up deaths for ever.
pub async fn i9_a_settle_clears_crashes(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    let dying = Worker::start(&*outbox, "dying").await;
    dying.claim_some(10).await;
    let next = Worker::start(&*outbox, "next").await;
    let batch = next.claim_some(10).await;
    assert_eq!(batch.events[0].crashes, 1);
    next.settle_all(&batch, &retry(Duration::ZERO)).await;
    let batch = next.claim_some(10).await;
    assert_eq!(batch.events[0].crashes, 0);
    assert_eq!(batch.events[0].attempts, 3);
}

/// Case shutdown-drops-in-flight: what a stopping relay releases is claimable at once, the attempt
/// not counted.
pub async fn release_gives_back_at_once(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(5)).await;
    let stopping = Worker::start(&*outbox, "stopping").await;
    let first = stopping.claim_some(3).await;
    let second = stopping.claim_some(10).await;
    assert_eq!(first.events.len() + second.events.len(), 5);
    for lane in &stopping.lanes {
        lane.release().await.expect("release");
    }
    let next = Worker::start(&*outbox, "next").await;
    let batch = next.claim_some(10).await;
    assert_eq!(
        batch.events.len(),
        5,
        "all of it, long before the lease ends"
    );
    for event in &batch.events {
        assert_eq!((event.attempts, event.crashes), (1, 0), "{}", text(event));
    }
    next.settle_all(&batch, &Verdict::Done).await;
    next.assert_drained().await;
}

/// After a release the old claims are void.
pub async fn i6_a_released_batch_can_not_be_settled(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    let stopping = Worker::start(&*outbox, "stopping").await;
    let old = stopping.claim_some(10).await;
    stopping.lane().release().await.expect("release");
    match stopping
        .lane()
        .settle(old.token, &all(&old, &Verdict::Done))
        .await
    {
        Err(error) => assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}"),
        Ok(settled) => assert_eq!((settled.applied, settled.lost), (0, 1)),
    }
    let next = Worker::start(&*outbox, "next").await;
    assert_eq!(texts(&next.drain_until(1).await), ["event"]);
}

/// A claim that is dropped half-way loses nothing: after the lease all of it comes back.
pub async fn a_cancelled_claim_recovers_after_its_lease(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &events(20)).await;
    let cancelled = Worker::start(&*outbox, "cancelled").await;
    for micros in [1, 50, 200, 1_000, 5_000] {
        let claim = cancelled.lane().claim(limit(3));
        // Whether it ended in time or not: its batch is dropped here.
        let _ = timeout(Duration::from_micros(micros), claim).await;
    }
    drop(cancelled);
    let next = Worker::start(&*outbox, "next").await;
    let seen = next.drain_until(20).await;
    let ids: BTreeSet<_> = seen.iter().map(|event| event.id).collect();
    assert_eq!((ids.len(), seen.len()), (20, 20));
}
