//! Writing events in the caller's transaction.

use std::{collections::HashMap, time::Duration};

use outbox_core::{Enqueue, Enqueued, Error, ErrorKind, Event, Result, demand_transaction};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use crate::{
    error::from_sqlx,
    sql::{Schema, WriterStatements},
};

/// Writes events into the queue on a connection of the caller's. Holds no connection; cheap to clone.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_core::{Enqueue as _, Event};
/// use outbox_postgres::PgOutbox;
///
/// let outbox = PgOutbox::new("outbox")?;
/// let event = Event::new("orders", "OrderPlaced")
///     .aggregate("order", "4711")
///     .json(&serde_json::json!({ "total": 12 }))?;
/// let mut tx = pool.begin().await?;
/// // … the business change, on the same transaction …
/// outbox.enqueue(&mut *tx, &event).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct PgOutbox {
    statements: WriterStatements,
    autocommit: bool,
}

impl PgOutbox {
    /// A writer for the outbox in this schema. No I/O.
    ///
    /// # Errors
    /// `Configuration` when the schema's name can't be used.
    pub fn new(schema: &str) -> Result<Self> {
        Ok(Self {
            statements: WriterStatements::new(&Schema::new(schema)?),
            autocommit: false,
        })
    }

    /// Also writes where the driver sees no transaction: for transactions begun by a hand-written
    /// `BEGIN`, which the driver can't see, and for events that no other change belongs to.
    #[must_use]
    pub fn allow_autocommit(mut self) -> Self {
        self.autocommit = true;
        self
    }

    fn demand_transaction(&self, connection: &PgConnection) -> Result<()> {
        demand_transaction(OPERATION, self.autocommit || connection.is_in_transaction())
    }
}

const OPERATION: &str = "enqueue";

impl Enqueue<PgConnection> for PgOutbox {
    async fn enqueue(&self, conn: &mut PgConnection, event: &Event) -> Result<Enqueued> {
        self.demand_transaction(conn)?;
        let done = sqlx::query(self.statements.enqueue.text())
            .bind(event.id())
            .bind(event.topic())
            .bind(own_key(event))
            .bind(event.event_type())
            .bind(version(event)?)
            .bind(event.aggregate_type())
            .bind(event.aggregate_id())
            .bind(event.content_type())
            .bind(headers(event))
            .bind(event.payload().map(|payload| &payload[..]))
            .bind(event.deliver_after().map(micros))
            .bind(event.dedup_key())
            .execute(conn)
            .await
            .map_err(fail)?;
        Ok(if done.rows_affected() == 0 {
            Enqueued::Duplicate
        } else {
            Enqueued::Written
        })
    }

    async fn enqueue_all(
        &self,
        conn: &mut PgConnection,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        self.demand_transaction(conn)?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let versions = events.iter().map(version).collect::<Result<Vec<_>>>()?;
        let keyed = events.iter().any(|event| event.dedup_key().is_some());
        let statement = if keyed {
            &self.statements.enqueue_all_told
        } else {
            &self.statements.enqueue_all
        };
        let query = sqlx::query(statement.text())
            .bind(column(events, Event::id))
            .bind(column(events, Event::topic))
            .bind(column(events, own_key))
            .bind(column(events, Event::event_type))
            .bind(versions)
            .bind(column(events, Event::aggregate_type))
            .bind(column(events, Event::aggregate_id))
            .bind(column(events, Event::content_type))
            .bind(column(events, headers))
            .bind(column(events, |event| {
                event.payload().map(|payload| &payload[..])
            }))
            .bind(column(events, |event| event.deliver_after().map(micros)))
            .bind(column(events, Event::dedup_key));
        let written = query.fetch_all(conn).await.map_err(fail)?;
        if !keyed {
            return Ok(vec![Enqueued::Written; events.len()]);
        }
        let mut ids: HashMap<Uuid, usize> = HashMap::with_capacity(written.len());
        for row in &written {
            let id = row.try_get(0).map_err(fail)?;
            *ids.entry(id).or_default() += 1;
        }
        Ok(events.iter().map(|event| told(&mut ids, event)).collect())
    }
}

/// What became of the event, by the ids of the rows that were written: one id may be there twice.
fn told(ids: &mut HashMap<Uuid, usize>, event: &Event) -> Enqueued {
    match ids.get_mut(&event.id()) {
        Some(rows) if *rows > 0 => {
            *rows -= 1;
            Enqueued::Written
        }
        _ => Enqueued::Duplicate,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form of map_err")]
fn fail(error: sqlx::Error) -> Error {
    from_sqlx(OPERATION, None, &error)
}

/// One part of every event.
fn column<'a, T>(events: &'a [Event], part: impl FnMut(&'a Event) -> T) -> Vec<T> {
    events.iter().map(part).collect()
}

/// The key, unless it is the aggregate's id, which readers take in its place.
fn own_key(event: &Event) -> Option<&str> {
    event.key().filter(|key| Some(*key) != event.aggregate_id())
}

fn version(event: &Event) -> Result<i32> {
    i32::try_from(event.event_version()).map_err(|_| {
        Error::new(
            ErrorKind::InvalidEvent,
            OPERATION,
            "event version is over 2147483647",
        )
    })
}

fn headers(event: &Event) -> Option<Value> {
    (!event.headers().is_empty()).then(|| event.headers().to_json())
}

/// Microseconds for the database, at most a century: later dates would leave its calendar.
pub(crate) fn micros(time: Duration) -> i64 {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    i64::try_from(time.min(CENTURY).as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_overflow_delays_stay_in_the_calendar() {
        assert_eq!(micros(Duration::from_millis(5)), 5000);
        assert_eq!(micros(Duration::MAX), 3_153_600_000_000_000);
    }
}
