//! Keys with parked events: who may go, and which keys are free again.

use sqlx::{Row as _, SqliteConnection};

use super::topics::{Scope, in_scope, stream_is_past};

/// How many events of a key may be free at a time: a claim looks at all of them.
const FREE_MAX: i64 = 1000;

/// Lets the held events of a key go that nothing stands before, and holds those that something does.
pub(crate) async fn promote(
    connection: &mut SqliteConnection,
    route: &str,
    key: &str,
) -> sqlx::Result<()> {
    let stop = "SELECT min(id) FROM outbox_queue
        WHERE blocks = 1 AND route = ?1 AND order_key = ?2
            AND (status = 'failed' OR parked = 'retry')";
    let stop: Option<i64> = sqlx::query(stop)
        .bind(route)
        .bind(key)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    let stop = stop.unwrap_or(i64::MAX);
    let hold = "UPDATE outbox_queue SET parked = 'held'
        WHERE blocks = 1 AND route = ?1 AND order_key = ?2 AND id > ?3 AND parked = 'free'";
    sqlx::query(hold)
        .bind(route)
        .bind(key)
        .bind(stop)
        .execute(&mut *connection)
        .await?;
    // Due before everything else and all at one time, so that the index hands them out by id.
    let free = "UPDATE outbox_queue SET parked = 'free', next_attempt_at = 0
        WHERE parked = 'held' AND id IN (
            SELECT id FROM outbox_queue
            WHERE blocks = 1 AND route = ?1 AND order_key = ?2 AND id < ?3
            ORDER BY id LIMIT ?4)";
    sqlx::query(free)
        .bind(route)
        .bind(key)
        .bind(stop)
        .bind(FREE_MAX)
        .execute(connection)
        .await?;
    Ok(())
}

/// Remembers that a parked event of this key went.
pub(crate) async fn free(
    connection: &mut SqliteConnection,
    route: &str,
    key: &str,
    bucket: i64,
) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT OR IGNORE INTO outbox_freed (route, order_key, bucket) VALUES (?1, ?2, ?3)",
    )
    .bind(route)
    .bind(key)
    .bind(bucket)
    .execute(connection)
    .await?;
    Ok(())
}

/// Scheduled events whose time has come and that stand behind an earlier event of their key. `?6` now.
macro_rules! overdue_behind {
    () => {
        concat!(
            "SELECT id FROM outbox_queue AS q INDEXED BY outbox_parked
            WHERE status = 'pending' AND parked IN ('retry', 'free', 'scheduled')
                AND parked = 'scheduled' AND next_attempt_at <= ?6 AND ",
            in_scope!(""),
            " AND EXISTS (SELECT 1 FROM outbox_queue AS p
                WHERE p.blocks = 1 AND p.route = ?1 AND p.order_key = q.order_key AND p.id < q.id) AND ",
            stream_is_past!()
        )
    };
}

/// The same, explained.
#[cfg(test)]
pub(crate) const OVERDUE_EXPLAINED: &str = concat!("EXPLAIN QUERY PLAN ", overdue_behind!());

/// Whether [`hold_scheduled`] would do anything.
pub(crate) async fn is_scheduled_to_be_held(
    connection: &mut SqliteConnection,
    scope: &Scope,
    now: i64,
) -> sqlx::Result<bool> {
    let text = concat!("SELECT EXISTS (", overdue_behind!(), ")");
    scope
        .query(text)
        .bind(now)
        .fetch_one(connection)
        .await?
        .try_get(0)
}

/// A scheduled event whose time has come still waits for earlier ones of its key.
pub(crate) async fn hold_scheduled(
    connection: &mut SqliteConnection,
    scope: &Scope,
    now: i64,
) -> sqlx::Result<()> {
    let text = concat!(
        "UPDATE outbox_queue SET parked = 'held', blocks = 1, route = ?1 WHERE id IN (",
        overdue_behind!(),
        ") RETURNING order_key"
    );
    let held = scope
        .query(text)
        .bind(now)
        .fetch_all(&mut *connection)
        .await?;
    for row in held {
        let key: String = row.try_get(0)?;
        promote(connection, &scope.route, &key).await?;
    }
    Ok(())
}

/// Keys to be told as unblocked: nothing parked, and nothing in flight that was claimed while they
/// were blocked and may still be settled as held.
pub(crate) async fn tell_unblocked(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> sqlx::Result<Vec<String>> {
    let again = "DELETE FROM outbox_freed AS f
        WHERE f.route = ?1 AND f.bucket % ?3 = ?2 AND EXISTS (
            SELECT 1 FROM outbox_queue AS p
            WHERE p.blocks = 1 AND p.route = ?1 AND p.order_key = f.order_key)";
    scope.query(again).execute(&mut *connection).await?;
    let told = "DELETE FROM outbox_freed AS f
        WHERE f.route = ?1 AND f.bucket % ?3 = ?2 AND NOT EXISTS (
            SELECT 1 FROM outbox_queue AS p
            WHERE p.status = 'processing' AND p.route = ?1 AND p.order_key = f.order_key)
        RETURNING order_key";
    let rows = scope.query(told).fetch_all(connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Keys with parked events.
pub(crate) async fn blocked(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> sqlx::Result<Vec<String>> {
    let text = "SELECT DISTINCT order_key FROM outbox_queue
        WHERE blocks = 1 AND route = ?1 AND bucket % ?3 = ?2 ORDER BY order_key";
    let rows = scope.query(text).fetch_all(connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Parked events of topics that another route had before are this one's from now on.
pub(crate) async fn adopt(connection: &mut SqliteConnection, scope: &Scope) -> sqlx::Result<()> {
    let text = concat!(
        "UPDATE outbox_queue SET route = ?1 WHERE blocks = 1 AND route <> ?1 AND ",
        in_scope!("")
    );
    scope.query(text).execute(&mut *connection).await?;
    scope
        .query("DELETE FROM outbox_freed WHERE route = ?1 AND bucket % ?3 = ?2")
        .execute(connection)
        .await?;
    Ok(())
}
