//! Latency when idle: from the commit of one event until a consumer of the stream has it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use outbox_core::Enqueue;
use outbox_postgres::{PgOutbox, PgQueue};
use redis::{
    AsyncConnectionConfig,
    streams::{StreamReadOptions, StreamReadReply},
};
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::{drain::relay, fill::event};

/// Writes `events` one by one, each after a pause that no poll is in step with.
pub(crate) async fn latencies(
    store: &Arc<PgQueue>,
    postgres: &str,
    redis: &str,
    topic: &str,
    events: usize,
) -> Result<Vec<Duration>> {
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(store, redis, 500)?.run(stop.clone()));
    let mut conn = PgConnection::connect(postgres).await?;
    let settings = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut consumer = redis::Client::open(redis)?
        .get_multiplexed_async_connection_with_config(&settings)
        .await?;
    let outbox = PgOutbox::new("outbox")?;
    let options = StreamReadOptions::default().block(10_000).count(1);
    let mut last = "0-0".to_owned();
    let mut latencies = Vec::with_capacity(events);
    for n in 0..events {
        // 211 and 97 have no common factor with the poll's 20 ms: every phase comes up.
        tokio::time::sleep(Duration::from_micros(60_000 + (n as u64 * 211 % 97) * 400)).await;
        let mut tx = conn.begin().await?;
        outbox.enqueue(&mut tx, &event(topic, n)?).await?;
        tx.commit().await?;
        let committed = Instant::now();
        let reply: StreamReadReply = redis::cmd("XREAD")
            .arg(&options)
            .arg("STREAMS")
            .arg(topic)
            .arg(&last)
            .query_async(&mut consumer)
            .await?;
        latencies.push(committed.elapsed());
        if let Some(entry) = reply.keys.first().and_then(|key| key.ids.first()) {
            last.clone_from(&entry.id);
        }
    }
    stop.cancel();
    running.await??;
    Ok(latencies)
}
