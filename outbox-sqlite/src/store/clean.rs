//! Removing delivered rows and old dedup keys, in one short transaction a step.

use async_trait::async_trait;
use outbox_core::{CleanRequest, Cleaned, Result, Retention};

use super::{SqliteQueue, database::clock};
use crate::enqueue::millis;

/// `?1` the last moment that is old enough.
macro_rules! old_events {
    () => {
        "FROM outbox_queue WHERE status = 'done' AND processed_at <= ?1"
    };
}
macro_rules! old_keys {
    () => {
        "FROM outbox_dedup WHERE created_at <= ?1"
    };
}

/// `?2` rows.
const CLEAN_EVENTS: &str = concat!(
    "DELETE FROM outbox_queue WHERE id IN (SELECT id ",
    old_events!(),
    " ORDER BY processed_at LIMIT ?2)"
);
const CLEAN_KEYS: &str = concat!(
    "DELETE FROM outbox_dedup WHERE dedup_key IN (SELECT dedup_key ",
    old_keys!(),
    " ORDER BY created_at LIMIT ?2)"
);
const COUNT_EVENTS: &str = concat!("SELECT count(*) ", old_events!());
const COUNT_KEYS: &str = concat!("SELECT count(*) ", old_keys!());

#[async_trait]
impl Retention for SqliteQueue {
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned> {
        const OPERATION: &str = "clean";
        let database = &self.0.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let rows_max = i64::from(request.rows_max.max(1));
        // SQLite has one writer at a time, so there never is another cleaner at work.
        let mut write = database.write(OPERATION).await?;
        let now = clock(&mut write.tx).await.map_err(fail)?;
        let mut removed = [0, 0];
        let steps = [
            (CLEAN_EVENTS, request.retention),
            (CLEAN_KEYS, request.dedup_retention),
        ];
        for (count, (text, age)) in removed.iter_mut().zip(steps) {
            let done = sqlx::query(text)
                .bind(now.saturating_sub(millis(age)))
                .bind(rows_max)
                .execute(&mut *write.tx)
                .await;
            *count = done.map_err(fail)?.rows_affected();
        }
        write.commit().await?;
        let [events, dedup_keys] = removed;
        Ok(Cleaned {
            events,
            dedup_keys,
            more: events.max(dedup_keys) >= rows_max.unsigned_abs(),
            ..Cleaned::default()
        })
    }

    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned> {
        const OPERATION: &str = "count what can be cleaned";
        let database = &self.0.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut connection = database.connection(OPERATION).await?;
        let now = clock(&mut connection).await.map_err(fail)?;
        let mut counted = [0, 0];
        let steps = [
            (COUNT_EVENTS, request.retention),
            (COUNT_KEYS, request.dedup_retention),
        ];
        for (count, (text, age)) in counted.iter_mut().zip(steps) {
            *count = sqlx::query_scalar::<_, i64>(text)
                .bind(now.saturating_sub(millis(age)))
                .fetch_one(&mut *connection)
                .await
                .map_err(fail)?;
        }
        let [events, dedup_keys] = counted.map(i64::unsigned_abs);
        Ok(Cleaned {
            events,
            dedup_keys,
            ..Cleaned::default()
        })
    }
}
