//! The limit beside a drain: the same claim and settle statements, batch size, connections and done
//! mode by the same driver, with the events dropped and no relay.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use outbox_core::{
    AcquireRequest, Batch, ClaimLimit, Lane, Settlement, Store, TopicSet, Verdict, WorkerId,
};
use outbox_postgres::PgQueue;

/// Claims and settles everything; a lane's settle runs beside its next claim, as in the relay.
pub(crate) async fn drain(store: &Arc<PgQueue>, limit: ClaimLimit) -> Result<Duration> {
    let (topics, worker) = (TopicSet::all(), WorkerId("limit".to_owned()));
    let request = AcquireRequest {
        route: "limit",
        topics: &topics,
        worker: &worker,
        held: &[],
    };
    let lanes = store.acquire(&request).await?.lanes;
    let started = Instant::now();
    let work = lanes
        .iter()
        .map(|lane| tokio::spawn(drain_lane(Arc::clone(lane), limit)));
    for lane in futures::future::join_all(work).await {
        lane??;
    }
    Ok(started.elapsed())
}

async fn drain_lane(lane: Arc<dyn Lane>, limit: ClaimLimit) -> Result<()> {
    let mut batch = lane.claim(limit).await?;
    while !batch.is_empty() {
        let (settled, next) = tokio::join!(settle(&*lane, &batch), lane.claim(limit));
        settled?;
        batch = next?;
    }
    Ok(lane.release().await?)
}

/// Settles a batch as delivered.
pub(crate) async fn settle(lane: &dyn Lane, batch: &Batch) -> Result<()> {
    let done = |position| Settlement {
        position,
        verdict: Verdict::Done,
    };
    let settlements: Vec<_> = batch
        .events
        .iter()
        .map(|event| done(event.position))
        .collect();
    lane.settle(batch.token, &settlements).await?;
    Ok(())
}
