//! The queue's state, each number at a bounded cost.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    BoundedCount, Failing, FailingTopic, Inspect, Inspection, LaneId, LaneInfo, Result,
};
use sqlx::Row as _;

use super::{
    PgQueue,
    row::{lossy, lossy_text, note, raw_at},
};

#[async_trait]
impl Inspect for PgQueue {
    async fn inspect(&self, count_max: u32) -> Result<Inspection> {
        const OPERATION: &str = "inspect";
        let database = &self.0.database;
        let statements = self.0.statements().await?;
        let query = sqlx::query(statements.inspect.text()).bind(i64::from(count_max) + 1);
        let rows = database.rows(OPERATION, query).await?;
        let wrong = |error: sqlx::Error| database.fail(OPERATION, &error);
        let Some(first) = rows.first() else {
            return Err(wrong(sqlx::Error::RowNotFound));
        };
        let bounded = |name: &str| -> Result<BoundedCount> {
            let counted: i64 = first.try_get(name).map_err(wrong)?;
            Ok(bounded(counted, count_max))
        };
        let in_flight = bounded("in_flight")?;
        let oldest_seconds: Option<f64> = first.try_get("oldest_seconds").map_err(wrong)?;
        let mut lanes = Vec::new();
        for row in &rows {
            let column = row.try_column("lease_owner").map_err(wrong)?;
            let owner = raw_at(row, sqlx::Column::ordinal(column)).map(lossy);
            let counted: Option<i64> = row.try_get("owner_in_flight").map_err(wrong)?;
            let lease_seconds: Option<f64> = row.try_get("lease_seconds").map_err(wrong)?;
            let Some(counted) = counted else { continue };
            let lane = owner.unwrap_or_default();
            lanes.push(LaneInfo {
                owner: lane.rsplit_once('/').map(|(worker, _)| worker.to_owned()),
                lane: LaneId(lane),
                in_flight: BoundedCount {
                    at_least: in_flight.at_least,
                    ..bounded_value(counted, count_max)
                },
                lease_left: seconds(lease_seconds),
            });
        }
        Ok(Inspection {
            pending: bounded("pending")?,
            scheduled: bounded("scheduled")?,
            in_flight,
            dead: bounded("dead")?,
            oldest_pending: seconds(oldest_seconds),
            lanes,
            ..Inspection::default()
        })
    }

    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing> {
        const OPERATION: &str = "inspect what fails";
        let database = &self.0.database;
        let statements = self.0.statements().await?;
        let query = sqlx::query(statements.failing.text())
            .bind(i64::from(rows_max) + 1)
            .bind(i64::from(topics_max) + 1);
        let rows = database.rows(OPERATION, query).await?;
        let wrong = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut found = Failing::default();
        for row in &rows {
            let looked_at: i64 = row.try_get("looked_at").map_err(wrong)?;
            let is_cut = bounded(looked_at, rows_max).at_least;
            found.more |= is_cut;
            let events: Option<i64> = row.try_get("events").map_err(wrong)?;
            // Nothing fails.
            let Some(events) = events else { continue };
            if found.topics.len() >= usize::try_from(topics_max).unwrap_or(usize::MAX) {
                found.more = true;
                break;
            }
            found.topics.push(FailingTopic {
                topic: lossy_text(row, "topic").unwrap_or_default(),
                waiting: BoundedCount {
                    at_least: is_cut,
                    ..bounded_value(events, rows_max)
                },
                retry_in: seconds(row.try_get("due_seconds").map_err(wrong)?),
                last_failure: note(row),
            });
        }
        Ok(found)
    }
}

/// The statement counts one row more than asked for.
fn bounded(counted: i64, count_max: u32) -> BoundedCount {
    BoundedCount {
        at_least: counted > i64::from(count_max),
        ..bounded_value(counted, count_max)
    }
}

fn bounded_value(counted: i64, count_max: u32) -> BoundedCount {
    BoundedCount {
        value: u64::try_from(counted)
            .unwrap_or(0)
            .min(u64::from(count_max)),
        at_least: false,
    }
}

/// Never negative, whatever the clock did, and never too large, whatever SQL wrote.
fn seconds(value: Option<f64>) -> Duration {
    Duration::try_from_secs_f64(value.unwrap_or(0.0).max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_skew_ages_are_never_negative() {
        assert_eq!(seconds(Some(-3.0)), Duration::ZERO);
        assert_eq!(seconds(Some(f64::NAN)), Duration::ZERO);
        assert_eq!(seconds(Some(f64::INFINITY)), Duration::MAX);
        assert_eq!(seconds(Some(1.5)), Duration::from_millis(1500));
        assert_eq!(seconds(None), Duration::ZERO);
    }

    #[test]
    fn counts_stop_at_their_bound() {
        assert_eq!(
            bounded(3, 3),
            BoundedCount {
                value: 3,
                at_least: false
            }
        );
        assert_eq!(
            bounded(4, 3),
            BoundedCount {
                value: 3,
                at_least: true
            }
        );
    }
}
