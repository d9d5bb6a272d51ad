//! The queue's state, each number at a bounded cost.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    BoundedCount, Failing, FailingTopic, Inspect, Inspection, LaneId, LaneInfo, Result,
};

use super::{
    SqliteQueue,
    row::{elapsed, lossy_text, note, number, optional_number},
};
use crate::migrate::now;

/// `?1` rows counted at the most, plus one that tells whether there are more. What is parked for a time
/// waits all the same behind another of its key that is no free one: dead, in flight or waiting itself.
/// To find that one takes no longer than a key has free ones, since those are bounded.
const COUNTS: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT ",
    now!(),
    " AS now),
    due AS MATERIALIZED (SELECT id, route, order_key, blocks,
            CASE parked WHEN 'free' THEN created_at ELSE next_attempt_at END AS since, 1 AS due FROM outbox_queue
        WHERE status = 'pending' AND parked IN ('retry', 'free', 'scheduled')
            AND next_attempt_at <= (SELECT now FROM clock) ORDER BY next_attempt_at, id LIMIT ?1),
    later AS MATERIALIZED (SELECT id, route, order_key, blocks, next_attempt_at AS since, 0 AS due FROM outbox_queue
        WHERE status = 'pending' AND parked IN ('retry', 'free', 'scheduled')
            AND next_attempt_at > (SELECT now FROM clock) ORDER BY next_attempt_at, id LIMIT ?1),
    timed AS (SELECT * FROM due UNION ALL SELECT * FROM later),
    stop AS MATERIALIZED (SELECT k.route, k.order_key,
            (SELECT p.id FROM outbox_queue AS p INDEXED BY outbox_blocks
            WHERE p.blocks = 1 AND p.route = k.route AND p.order_key = k.order_key
                AND NOT (p.status = 'pending' AND p.parked = 'free') ORDER BY p.id LIMIT 1) AS id
        FROM (SELECT DISTINCT route, order_key FROM timed WHERE blocks = 1) AS k),
    waiting AS MATERIALIZED (SELECT t.since, t.due, coalesce(t.id > s.id, 0) AS behind FROM timed AS t
        LEFT JOIN stop AS s ON t.blocks = 1 AND s.route = t.route AND s.order_key = t.order_key)
    SELECT (SELECT now FROM clock) AS now,
        (SELECT count(*) FROM (SELECT id FROM outbox_queue
            WHERE status = 'pending' AND parked IS NULL ORDER BY id LIMIT ?1)) AS stream,
        (SELECT count(*) FROM waiting WHERE due = 1 AND behind = 0) AS due,
        (SELECT count(*) FROM due) = ?1 AS due_cut,
        (SELECT count(*) FROM waiting WHERE due = 0 AND behind = 0) AS scheduled,
        (SELECT count(*) FROM later) = ?1 AS scheduled_cut,
        (SELECT count(*) FROM (SELECT id FROM outbox_queue WHERE status = 'processing' LIMIT ?1)) AS in_flight,
        (SELECT count(*) FROM (SELECT id FROM outbox_queue
            WHERE status = 'pending' AND parked = 'held' LIMIT ?1)) AS held,
        (SELECT count(*) FROM waiting WHERE behind = 1) AS behind,
        (SELECT count(*) FROM (SELECT id FROM outbox_queue WHERE status = 'failed' LIMIT ?1)) AS dead,
        (SELECT count(*) FROM (SELECT DISTINCT route, order_key FROM outbox_queue
            WHERE blocks = 1 LIMIT ?1)) AS blocked_keys,
        (SELECT created_at FROM outbox_queue
            WHERE status = 'pending' AND parked IS NULL ORDER BY id LIMIT 1) AS oldest_stream,
        (SELECT min(since) FROM waiting WHERE due = 1 AND behind = 0) AS oldest_parked"
);

/// A lane that was given back has no lease, whatever is left of the last owner's.
const LANES: &str = "SELECT l.route, l.lane, l.owner,
        CASE WHEN l.owner IS NULL THEN 0 ELSE l.lease_until END AS lease_until,
        (SELECT count(*) FROM (SELECT 1 FROM outbox_flight AS f
            JOIN outbox_queue AS q ON q.status = 'processing' AND q.lease_token = f.token
            WHERE f.route = l.route AND f.lane = l.lane AND f.applied IS NULL LIMIT ?1)) AS in_flight
    FROM outbox_lane AS l ORDER BY l.route, l.lane";

/// The bound stands before the question which of the rows failed: rows that a producer scheduled can't
/// make it read on.
const FAILING: &str = concat!(
    "SELECT id, topic, next_attempt_at, last_failed_at, error_kind, error, ",
    now!(),
    " AS now FROM outbox_queue
    WHERE status = 'pending' AND parked IN ('retry', 'free', 'scheduled') AND next_attempt_at > ",
    now!(),
    " ORDER BY next_attempt_at, id LIMIT ?1"
);

#[async_trait]
impl Inspect for SqliteQueue {
    async fn inspect(&self, count_max: u32) -> Result<Inspection> {
        const OPERATION: &str = "inspect";
        let database = &self.0.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut connection = database.connection(OPERATION).await?;
        let counts = sqlx::query(COUNTS)
            .bind(i64::from(count_max) + 1)
            .fetch_one(&mut *connection)
            .await
            .map_err(fail)?;
        let lanes = sqlx::query(LANES)
            .bind(i64::from(count_max) + 1)
            .fetch_all(&mut *connection)
            .await
            .map_err(fail)?;
        let now = number(&counts, "now")?;
        let read = |name: &str| number(&counts, name);
        let count = |name: &str| read(name).map(|n| bounded(n, count_max));
        let (due_cut, scheduled_cut) = (read("due_cut")? == 1, read("scheduled_cut")? == 1);
        let behind = read("behind")?;
        let cut = |counted: i64, cut: bool| {
            let count = bounded(counted, count_max);
            BoundedCount {
                at_least: count.at_least || cut,
                ..count
            }
        };
        let oldest = [
            optional_number(&counts, "oldest_stream"),
            optional_number(&counts, "oldest_parked"),
        ];
        let oldest = oldest.into_iter().flatten().min();
        Ok(Inspection {
            pending: cut(read("stream")? + read("due")?, due_cut),
            scheduled: cut(read("scheduled")?, scheduled_cut),
            in_flight: count("in_flight")?,
            // Rows that were not read are told of only where those read speak for it: most outboxes
            // that schedule many events hold none.
            held: cut(
                read("held")? + behind,
                behind > 0 && (due_cut || scheduled_cut),
            ),
            dead: count("dead")?,
            oldest_pending: oldest.map_or(Duration::ZERO, |since| elapsed(since, now)),
            blocked_keys: count("blocked_keys")?,
            lanes: lanes
                .iter()
                .map(|row| {
                    let lane = number(row, "lane")?;
                    Ok(LaneInfo {
                        lane: LaneId(lane.to_string()),
                        owner: lossy_text(row, "owner"),
                        in_flight: bounded(number(row, "in_flight")?, count_max),
                        lease_left: elapsed(now, number(row, "lease_until")?),
                    })
                })
                .collect::<Result<_>>()?,
        })
    }

    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing> {
        const OPERATION: &str = "inspect what fails";
        let database = &self.0.database;
        let mut connection = database.connection(OPERATION).await?;
        let rows = sqlx::query(FAILING)
            .bind(i64::from(rows_max) + 1)
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| database.fail(OPERATION, &error))?;
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        let topics_max = usize::try_from(topics_max).unwrap_or(usize::MAX);
        let cut = rows.len() > rows_max;
        let mut topics: Vec<(FailingTopic, i64)> = Vec::new();
        for row in rows.iter().take(rows_max) {
            let Some(failed_at) = optional_number(row, "last_failed_at") else {
                continue;
            };
            let topic = lossy_text(row, "topic").unwrap_or_default();
            let retry_in = elapsed(number(row, "now")?, number(row, "next_attempt_at")?);
            match topics.iter_mut().find(|(known, _)| known.topic == topic) {
                Some((known, newest)) => {
                    known.waiting.value += 1;
                    if failed_at >= *newest {
                        *newest = failed_at;
                        known.last_failure = note(row);
                    }
                }
                None => topics.push((
                    FailingTopic {
                        topic,
                        waiting: BoundedCount {
                            value: 1,
                            at_least: cut,
                        },
                        // The rows come by their due times.
                        retry_in,
                        last_failure: note(row),
                    },
                    failed_at,
                )),
            }
        }
        let mut topics: Vec<FailingTopic> = topics.into_iter().map(|(topic, _)| topic).collect();
        topics.sort_by(|a, b| {
            let most = b.waiting.value.cmp(&a.waiting.value);
            most.then_with(|| a.topic.cmp(&b.topic))
        });
        let more = cut || topics.len() > topics_max;
        topics.truncate(topics_max);
        Ok(Failing { topics, more })
    }
}

/// The statement counts one row more than asked for.
fn bounded(counted: i64, count_max: u32) -> BoundedCount {
    BoundedCount {
        value: counted.unsigned_abs().min(u64::from(count_max)),
        at_least: counted > i64::from(count_max),
    }
}
