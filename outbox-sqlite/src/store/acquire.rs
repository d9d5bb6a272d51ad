//! Handing out lanes: equal shares among the workers that asked within a lease.

use outbox_core::{AcquireRequest, LaneId, Result};
use sqlx::{Row as _, SqliteConnection};

use super::{Queue, database::clock, flights, keys, topics::Scope};
use crate::enqueue::millis;

const OPERATION: &str = "acquire lanes";

/// Lanes that were taken with their epochs, and those to give back.
type Answer = (Vec<(Scope, i64)>, Vec<LaneId>);

struct Row {
    lane: i64,
    owner: Option<String>,
    epoch: i64,
    lease_until: i64,
}

pub(crate) async fn acquire(queue: &Queue, request: &AcquireRequest<'_>) -> Result<Answer> {
    let database = &queue.database;
    let mut write = database.write(OPERATION).await?;
    let answer = in_transaction(&mut write.tx, queue, request)
        .await
        .map_err(|error| database.fail(OPERATION, &error))?;
    write.commit().await?;
    Ok(answer)
}

async fn in_transaction(
    tx: &mut SqliteConnection,
    queue: &Queue,
    request: &AcquireRequest<'_>,
) -> sqlx::Result<Answer> {
    let now = clock(tx).await?;
    let lease_ms = millis(queue.config.lease);
    let lease_until = now.saturating_add(lease_ms);
    let worker = &request.worker.0;
    let rows = lanes(tx, request.route, queue.config.lanes).await?;
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let share = share(tx, request.route, worker, now, lease_ms, rows.len()).await?;

    let mut owned = Vec::new();
    for row in &rows {
        let id = LaneId(row.lane.to_string());
        if row.owner.as_ref() == Some(worker) && request.held.contains(&id) {
            let text = "UPDATE outbox_lane SET lease_until = max(lease_until, ?3)
                WHERE route = ?1 AND lane = ?2";
            sqlx::query(text)
                .bind(request.route)
                .bind(row.lane)
                .bind(lease_until)
                .execute(&mut *tx)
                .await?;
            owned.push(id);
        }
    }
    let mut taken = Vec::new();
    for row in &rows {
        let id = LaneId(row.lane.to_string());
        // One that this worker has and does not hold was given up, or given to a call whose answer was
        // lost: nobody works it.
        let given_up = row.owner.as_ref() == Some(worker);
        let free = given_up || row.owner.is_none() || row.lease_until <= now;
        if owned.len() + taken.len() >= share || request.held.contains(&id) || !free {
            continue;
        }
        let scope = Scope::new(request.route, row.lane, count, request.topics);
        if given_up {
            flights::give_back(tx, &scope).await?;
        } else {
            // What the former owner had in flight counts as a crash.
            flights::expire(tx, &scope, None).await?;
        }
        keys::adopt(tx, &scope).await?;
        let text = "UPDATE outbox_lane SET owner = ?3, epoch = ?4, lease_until = ?5
            WHERE route = ?1 AND lane = ?2";
        sqlx::query(text)
            .bind(request.route)
            .bind(row.lane)
            .bind(worker)
            .bind(row.epoch + 1)
            .bind(lease_until)
            .execute(&mut *tx)
            .await?;
        taken.push((scope, row.epoch + 1));
    }
    let surrender = owned.split_off(share.min(owned.len()));
    Ok((taken, surrender))
}

/// The route's lanes; made when it has none, by this relay's setting.
async fn lanes(tx: &mut SqliteConnection, route: &str, lanes_new: usize) -> sqlx::Result<Vec<Row>> {
    let read =
        "SELECT lane, owner, epoch, lease_until FROM outbox_lane WHERE route = ?1 ORDER BY lane";
    let mut rows = sqlx::query(read).bind(route).fetch_all(&mut *tx).await?;
    if rows.is_empty() {
        for lane in 0..i64::try_from(lanes_new).unwrap_or(i64::MAX) {
            sqlx::query("INSERT INTO outbox_lane (route, lane) VALUES (?1, ?2)")
                .bind(route)
                .bind(lane)
                .execute(&mut *tx)
                .await?;
        }
        rows = sqlx::query(read).bind(route).fetch_all(&mut *tx).await?;
    }
    rows.iter()
        .map(|row| {
            Ok(Row {
                lane: row.try_get(0)?,
                owner: row.try_get(1)?,
                epoch: row.try_get(2)?,
                lease_until: row.try_get(3)?,
            })
        })
        .collect()
}

/// How many lanes this worker should hold.
async fn share(
    tx: &mut SqliteConnection,
    route: &str,
    worker: &str,
    now: i64,
    lease_ms: i64,
    lanes: usize,
) -> sqlx::Result<usize> {
    sqlx::query(
        "INSERT OR REPLACE INTO outbox_worker (route, worker, asked_at) VALUES (?1, ?2, ?3)",
    )
    .bind(route)
    .bind(worker)
    .bind(now)
    .execute(&mut *tx)
    .await?;
    sqlx::query("DELETE FROM outbox_worker WHERE route = ?1 AND asked_at <= ?2")
        .bind(route)
        .bind(now.saturating_sub(lease_ms))
        .execute(&mut *tx)
        .await?;
    let workers = sqlx::query("SELECT worker FROM outbox_worker WHERE route = ?1 ORDER BY worker")
        .bind(route)
        .fetch_all(tx)
        .await?;
    let count = workers.len().max(1);
    let mut rank = 0;
    for (index, row) in workers.iter().enumerate() {
        if row.try_get::<&str, _>(0)? == worker {
            rank = index;
        }
    }
    Ok(lanes / count + usize::from(rank < lanes % count))
}
