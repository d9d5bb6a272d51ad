//! Dead letters: the rows whose status is `failed`.

use std::collections::BTreeSet;

use async_trait::async_trait;
use outbox_core::{
    DeadFilter, DeadGroup, DeadLetter, DeadLetters, DeadReason, DeadSummary, ErrorKind, Page,
    Position, Result,
};
use sqlx::{
    Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    SqliteQueue,
    database::clock,
    keys,
    row::{self, error_kind, event_columns, event_id, instant, lossy_text, note, number},
};
use crate::{enqueue::millis, migrate::now};

/// Which rows a filter means: `?1` ids as JSON, `?2` topic, `?3` key, `?4` type, `?5` kind of error,
/// `?6` milliseconds; null for any.
macro_rules! dead {
    () => {
        concat!(
            "status = 'failed'
            AND (?1 IS NULL OR event_id IN (SELECT value FROM json_each(?1)))
            AND (?2 IS NULL OR topic = ?2)
            AND (?3 IS NULL OR order_key = ?3)
            AND (?4 IS NULL OR event_type = ?4)
            AND (?5 IS NULL OR error_kind = ?5)
            AND (?6 IS NULL OR coalesce(processed_at, created_at) <= ",
            now!(),
            " - ?6)"
        )
    };
}

const LIST: &str = concat!(
    "SELECT id, event_id, topic, order_key, event_type, attempts, dead_reason, error_kind, error,
        created_at, coalesce(processed_at, created_at) AS dead_at
    FROM outbox_queue WHERE ",
    dead!(),
    " AND id > coalesce(?7, -9223372036854775808) ORDER BY id LIMIT ?8"
);
const GET: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", dead_reason, error_kind, error, coalesce(processed_at, created_at) AS dead_at
    FROM outbox_queue WHERE status = 'failed' AND event_id = ?2 ORDER BY id LIMIT 1"
);
const COUNT: &str = concat!(
    "SELECT count(*) AS counted FROM outbox_queue WHERE ",
    dead!()
);
const GROUPS: &str = concat!(
    "SELECT topic, event_type, error_kind, count(*) AS counted FROM outbox_queue WHERE ",
    dead!(),
    " GROUP BY topic, event_type, error_kind
    ORDER BY count(*) DESC, topic, event_type, error_kind LIMIT ?7"
);
/// One that held its key goes before its followers, by its position; one that did not must not hold
/// them now, since they went on without it.
const REQUEUE: &str = concat!(
    "UPDATE outbox_queue SET status = 'pending',
        parked = CASE blocks WHEN 1 THEN 'retry' ELSE 'scheduled' END,
        attempts = 0, crashes = 0, next_attempt_at = ",
    now!(),
    ", first_failed_at = NULL, last_failed_at = NULL, dead_reason = NULL, error_kind = NULL,
        error = NULL, processed_at = NULL
    WHERE id IN (SELECT id FROM outbox_queue WHERE ",
    dead!(),
    " ORDER BY id LIMIT ?7)"
);
const DISCARD: &str = concat!(
    "DELETE FROM outbox_queue WHERE id IN (SELECT id FROM outbox_queue WHERE ",
    dead!(),
    " ORDER BY id LIMIT ?7) RETURNING blocks, route, order_key, bucket"
);

/// The statement with the filter as its first parameters.
fn filtered<'q>(text: &'static str, filter: &'q DeadFilter) -> Query<'q, Sqlite, SqliteArguments> {
    let ids: Vec<String> = filter.ids.iter().map(Uuid::to_string).collect();
    sqlx::query(text)
        .bind((!ids.is_empty()).then(|| serde_json::json!(ids).to_string()))
        .bind(&filter.topic)
        .bind(&filter.key)
        .bind(&filter.event_type)
        .bind(filter.error_kind.map(ErrorKind::as_str))
        .bind(filter.dead_for.map(millis))
}

impl SqliteQueue {
    async fn dead_rows(
        &self,
        operation: &'static str,
        query: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>> {
        let database = &self.0.database;
        let mut connection = database.connection(operation).await?;
        let rows = query.fetch_all(&mut *connection).await;
        rows.map_err(|error| database.fail(operation, &error))
    }
}

#[async_trait]
impl DeadLetters for SqliteQueue {
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>> {
        let query = filtered(LIST, filter)
            .bind(page.after.map(|position| position.0))
            .bind(i64::from(page.limit));
        let rows = self.dead_rows("list dead letters", query).await?;
        rows.iter().map(summary).collect()
    }

    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>> {
        const OPERATION: &str = "read dead letter";
        let database = &self.0.database;
        let bytes_max = self.0.config.event_bytes_max;
        let query = sqlx::query(GET)
            .bind(i64::try_from(bytes_max).unwrap_or(i64::MAX))
            .bind(event_id.to_string());
        let rows = self.dead_rows(OPERATION, query).await?;
        let mut connection = database.connection(OPERATION).await?;
        let now = clock(&mut connection).await;
        let now = now.map_err(|error| database.fail(OPERATION, &error))?;
        rows.first()
            .map(|row| {
                Ok(DeadLetter {
                    summary: summary(row)?,
                    event: row::read(row, bytes_max, now)?.map_err(|unreadable| unreadable.error),
                })
            })
            .transpose()
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        let rows = self
            .dead_rows("count dead letters", filtered(COUNT, filter))
            .await?;
        let row = rows.first().ok_or_else(row::unknown_form)?;
        Ok(number(row, "counted")?.unsigned_abs())
    }

    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>> {
        let query = filtered(GROUPS, filter).bind(i64::from(limit));
        let rows = self.dead_rows("group dead letters", query).await?;
        rows.iter()
            .map(|row| {
                Ok(DeadGroup {
                    topic: lossy_text(row, "topic").unwrap_or_default(),
                    event_type: lossy_text(row, "event_type").unwrap_or_default(),
                    error_kind: error_kind(row),
                    count: number(row, "counted")?.unsigned_abs(),
                })
            })
            .collect()
    }

    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        const OPERATION: &str = "requeue dead letters";
        let database = &self.0.database;
        let mut write = database.write(OPERATION).await?;
        let done = filtered(REQUEUE, filter)
            .bind(i64::from(limit))
            .execute(&mut *write.tx)
            .await;
        let done = done.map_err(|error| database.fail(OPERATION, &error))?;
        write.commit().await?;
        self.0.bell.notify_waiters();
        Ok(done.rows_affected())
    }

    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        const OPERATION: &str = "discard dead letters";
        let database = &self.0.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut write = database.write(OPERATION).await?;
        let query = filtered(DISCARD, filter).bind(i64::from(limit));
        let rows = query.fetch_all(&mut *write.tx).await.map_err(fail)?;
        let mut freed = BTreeSet::new();
        for row in &rows {
            let text = |name: &str| lossy_text(row, name);
            if let (1, Some(route), Some(key)) =
                (number(row, "blocks")?, text("route"), text("order_key"))
            {
                freed.insert((route, key, number(row, "bucket")?));
            }
        }
        for (route, key, bucket) in &freed {
            keys::free(&mut write.tx, route, key, *bucket)
                .await
                .map_err(fail)?;
            keys::promote(&mut write.tx, route, key)
                .await
                .map_err(fail)?;
        }
        write.commit().await?;
        self.0.bell.notify_waiters();
        Ok(rows.len() as u64)
    }
}

/// A line of the list. It is also made of rows that can't be read as events, so text is taken as
/// far as it goes.
fn summary(row: &SqliteRow) -> Result<DeadSummary> {
    let text = |name: &str| lossy_text(row, name);
    let time = |name: &str| -> Result<OffsetDateTime> {
        let ms = number(row, name)?;
        Ok(instant(ms).unwrap_or(OffsetDateTime::UNIX_EPOCH))
    };
    Ok(DeadSummary {
        position: Position(number(row, "id")?),
        event_id: event_id(row)?,
        topic: text("topic").unwrap_or_default(),
        key: text("order_key"),
        event_type: text("event_type").unwrap_or_default(),
        attempts: u32::try_from(number(row, "attempts")?).unwrap_or(0),
        // A row that SQL set to `failed` has none: somebody refused it.
        reason: text("dead_reason")
            .and_then(|reason| DeadReason::parse(&reason))
            .unwrap_or(DeadReason::Rejected),
        note: note(row),
        created_at: time("created_at")?,
        dead_at: time("dead_at")?,
    })
}
