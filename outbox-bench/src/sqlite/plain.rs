//! The limit of a drain: each batch is taken and settled by one statement each, in transactions of
//! their own as in the relay, with no lanes, leases, order or engine.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use outbox_core::DoneMode;
use sqlx::{Connection as _, Row as _};

use super::file::File;

const TAKE: &str =
    "UPDATE outbox_queue SET status = 'processing', lease_token = ?1, attempts = attempts + 1
    WHERE id IN (SELECT id FROM outbox_queue INDEXED BY outbox_stream
        WHERE status = 'pending' AND parked IS NULL ORDER BY id LIMIT ?2)
    RETURNING event_id, topic, order_key, event_type, event_version, aggregate_type, aggregate_id,
        content_type, headers, payload, created_at";
const KEEP: &str = "UPDATE outbox_queue SET status = 'done', lease_token = NULL, processed_at = 1
    WHERE status = 'processing' AND lease_token = ?1";
const DELETE: &str = "DELETE FROM outbox_queue WHERE status = 'processing' AND lease_token = ?1";

/// Takes and settles everything.
pub(crate) async fn drain(
    file: &File,
    done: DoneMode,
    batch: usize,
    events: usize,
) -> Result<Duration> {
    let settle = match done {
        DoneMode::Keep => KEEP,
        DoneMode::Delete => DELETE,
    };
    let mut conn = file.connection().await?;
    let started = Instant::now();
    let mut drained = 0;
    for number in 0_i64.. {
        let token = number.to_string();
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        let take = sqlx::query(TAKE).bind(&token).bind(i64::try_from(batch)?);
        let rows = take.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            // The bytes that a publisher would send.
            let payload: Vec<u8> = row.try_get("payload")?;
            ensure!(!payload.is_empty(), "an event without a payload");
        }
        drained += rows.len();
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query(settle).bind(&token).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    let elapsed = started.elapsed();
    ensure!(drained == events, "{drained} of {events} events were taken");
    Ok(elapsed)
}
