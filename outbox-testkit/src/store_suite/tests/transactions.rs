//! I1, I13: what a transaction wrote exists when it committed, whatever others do meanwhile.

use std::collections::BTreeSet;

use tokio::time::timeout;

use crate::store_suite::bench::{
    LONG, PATIENCE, StoreBench, Worker, commit, event, events, text, texts,
};

/// Rolled-back events are never seen, open ones not before their commit.
pub async fn i1_committed_only(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;

    let mut rolled_back = outbox.begin().await;
    rolled_back.enqueue(&[event("k", "rolled back")]).await;
    worker.assert_drained().await;
    rolled_back.rollback().await;
    worker.assert_drained().await;

    let mut dropped = outbox.begin().await;
    dropped.enqueue(&[event("k", "dropped")]).await;
    drop(dropped);

    let mut committed = outbox.begin().await;
    committed.enqueue(&[event("k", "committed")]).await;
    worker.assert_drained().await;
    committed.commit().await;
    assert_eq!(texts(&worker.drain_until(1).await), ["committed"]);
    worker.assert_drained().await;
}

/// Case seq-gap-skip: of two open transactions the later one commits first; neither is lost.
pub async fn i2_late_commits_are_not_skipped(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    if !bench.gates().concurrent_writers {
        commit(&*outbox, &[event("a", "first"), event("b", "second")]).await;
        assert_eq!(worker.drain_until(2).await.len(), 2);
        return;
    }
    for round in 0..10 {
        let mut early = outbox.begin().await;
        early
            .enqueue(&[event("a", &format!("early {round}"))])
            .await;
        let mut late = outbox.begin().await;
        late.enqueue(&[event("b", &format!("late {round}"))]).await;
        late.commit().await;
        assert_eq!(
            texts(&worker.drain_until(1).await),
            [format!("late {round}")]
        );
        early.commit().await;
        assert_eq!(
            texts(&worker.drain_until(1).await),
            [format!("early {round}")]
        );
    }
}

/// Several enqueues and a whole list in one transaction all arrive, once each.
pub async fn i2_a_big_transaction_arrives_whole(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let sent = events(2_000);
    let mut writer = outbox.begin().await;
    writer.enqueue(&sent[..1]).await;
    writer.enqueue(&[]).await;
    writer.enqueue(&sent[1..]).await;
    writer.commit().await;
    let worker = Worker::start(&*outbox, "relay").await;
    let seen = worker.drain_until(2_000).await;
    assert_eq!(seen.len(), 2_000);
    let ids: BTreeSet<_> = seen.iter().map(|event| event.id).collect();
    assert_eq!(ids, sent.iter().map(outbox_core::Event::id).collect());
}

/// No lock is shared between writers, nor between a writer and a relay with a batch in flight.
pub async fn i13_writers_wait_for_nobody(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    commit(&*outbox, &[event("k", "in flight")]).await;
    let in_flight = worker.claim_some(10).await;

    let write = async {
        let mut first = outbox.begin().await;
        first.enqueue(&[event("k", "first")]).await;
        if bench.gates().concurrent_writers {
            commit(&*outbox, &[event("k", "second")]).await;
        }
        first.commit().await;
    };
    timeout(PATIENCE, write)
        .await
        .expect("a writer waited for another or for the relay");
    assert_eq!(text(&in_flight.events[0]), "in flight");
}
