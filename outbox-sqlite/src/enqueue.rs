//! Writing events in the caller's transaction.

use std::time::Duration;

use outbox_core::{Enqueue, Enqueued, Event, Result, demand_transaction};
use sqlx::{Connection as _, SqliteConnection};

use crate::{error::from_sqlx, migrate::now};

/// Writes events into the queue on a connection of the caller's. Holds no connection; cheap to clone.
///
/// ```no_run
/// # async fn example(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_core::{Enqueue as _, Event};
/// use outbox_sqlite::SqliteOutbox;
///
/// let outbox = SqliteOutbox::new();
/// let event = Event::new("orders", "OrderPlaced")
///     .aggregate("order", "4711")
///     .json(&serde_json::json!({ "total": 12 }))?;
/// // Not `begin`: a transaction that reads first and writes later can fail with SQLITE_BUSY.
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// // … the business change, on the same transaction …
/// outbox.enqueue(&mut *tx, &event).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct SqliteOutbox {
    autocommit: bool,
}

impl SqliteOutbox {
    /// A writer. No I/O.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also writes where the driver sees no transaction: for transactions begun by a hand-written
    /// `BEGIN`, which the driver can't see, and for events that no other change belongs to.
    #[must_use]
    pub fn allow_autocommit(mut self) -> Self {
        self.autocommit = true;
        self
    }

    fn demand_transaction(&self, connection: &SqliteConnection) -> Result<()> {
        demand_transaction(OPERATION, self.autocommit || connection.is_in_transaction())
    }
}

const OPERATION: &str = "enqueue";

const INSERT: &str = concat!(
    "INSERT INTO outbox_queue (event_id, topic, key, event_type, event_version, aggregate_type,
        aggregate_id, content_type, headers, payload, dedup_key, next_attempt_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ",
    now!(),
    " + ?12)"
);

impl Enqueue<SqliteConnection> for SqliteOutbox {
    async fn enqueue(&self, conn: &mut SqliteConnection, event: &Event) -> Result<Enqueued> {
        self.demand_transaction(conn)?;
        write(conn, event).await
    }

    async fn enqueue_all(
        &self,
        conn: &mut SqliteConnection,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        self.demand_transaction(conn)?;
        let mut told = Vec::with_capacity(events.len());
        // One prepared statement, run for each: the database is in this process, so that nothing
        // is saved by a longer one.
        for event in events {
            told.push(write(conn, event).await?);
        }
        Ok(told)
    }
}

async fn write(conn: &mut SqliteConnection, event: &Event) -> Result<Enqueued> {
    let headers = (!event.headers().is_empty()).then(|| event.headers().to_json().to_string());
    let done = sqlx::query(INSERT)
        .bind(event.id().to_string())
        .bind(event.topic())
        .bind(event.key().filter(|key| Some(*key) != event.aggregate_id()))
        .bind(event.event_type())
        .bind(i64::from(event.event_version()))
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.content_type())
        .bind(headers)
        .bind(event.payload().map(|payload| payload.to_vec()))
        .bind(event.dedup_key())
        .bind(millis(event.deliver_after().unwrap_or_default()))
        .execute(conn)
        .await
        .map_err(|error| from_sqlx(OPERATION, None, &error))?;
    Ok(match done.rows_affected() {
        0 => Enqueued::Duplicate,
        _ => Enqueued::Written,
    })
}

/// Milliseconds for the database, rounded up, so that nothing is early; at most a century.
pub(crate) fn millis(time: Duration) -> i64 {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    i64::try_from(time.min(CENTURY).as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_overflow_delays_stay_in_the_calendar() {
        assert_eq!(millis(Duration::from_micros(4001)), 5);
        assert_eq!(millis(Duration::MAX), 3_153_600_000_000);
    }
}
