//! Removing delivered rows and old dedup keys, in single statements that commit by themselves.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use outbox_core::{CleanRequest, Cleaned, Result, Retention};
use sqlx::Row as _;

use super::{PgQueue, database::needing};
use crate::enqueue::micros;

/// Where the next step looks. The steps of a round go through the table by id, up to the rows that are
/// too young, and then from the front again.
#[derive(Debug, Default)]
pub(crate) struct Cursor(Mutex<Option<Round>>);

#[derive(Debug, Clone, Copy)]
struct Round {
    began: Instant,
    /// The last id that was looked at.
    last_id: i64,
}

impl Cursor {
    /// A round that is not over by then starts anew: rows that were delivered behind it, or locked,
    /// must not wait for the end of a table that grows as fast as it is cleaned.
    const ROUND_MAX: Duration = Duration::from_secs(600);

    fn next(&self, now: Instant) -> Round {
        let round = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        round
            .filter(|round| now.duration_since(round.began) < Self::ROUND_MAX)
            .unwrap_or(Round {
                began: now,
                // Identities may be given by hand, and so may be negative.
                last_id: i64::MIN,
            })
    }

    fn set(&self, round: Option<Round>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = round;
    }
}

#[async_trait]
impl Retention for PgQueue {
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned> {
        const OPERATION: &str = "clean";
        let queue = &self.0;
        let rows_max = i64::from(request.rows_max.max(1));
        let kept = queue.keep_partitions(request.retention).await?;
        if kept.dropped > 0 {
            return Ok(Cleaned {
                partitions: kept.dropped,
                more: true,
                notice: kept.notice,
                ..Cleaned::default()
            });
        }
        let round = queue.cleaned_to.next(Instant::now());
        let statements = &queue.schema_statements;
        let statement = match kept.span {
            None => &statements.clean,
            Some(_) => &statements.clean_old,
        };
        let mut query = sqlx::query(statement.text())
            .bind(round.last_id)
            .bind(rows_max)
            .bind(micros(request.retention))
            .bind(micros(request.dedup_retention));
        if let Some(span) = kept.span_name() {
            query = query.bind(span);
        }
        let row = queue.database.row(OPERATION, query).await.map_err(needing(
            "SELECT, UPDATE and DELETE on the tables queue and dedup",
        ))?;
        let wrong = |error: sqlx::Error| queue.database.fail(OPERATION, &error);
        let number = |name: &str| row.try_get::<i64, _>(name).map_err(wrong);
        if !row.try_get::<bool, _>("alone").map_err(wrong)? {
            return Ok(Cleaned {
                busy: true,
                ..Cleaned::default()
            });
        }
        let (events, dedup_keys) = (number("events")?, number("dedup_keys")?);
        let any_old: bool = row.try_get("any_old").map_err(wrong)?;
        let goes_on = number("looked_at")? >= rows_max && any_old;
        let last_id: Option<i64> = row.try_get("last_id").map_err(wrong)?;
        let next = last_id.map(|last_id| Round { last_id, ..round });
        queue.cleaned_to.set(next.filter(|_| goes_on));
        Ok(Cleaned {
            events: events.unsigned_abs(),
            dedup_keys: dedup_keys.unsigned_abs(),
            more: goes_on || dedup_keys >= rows_max,
            notice: kept.notice,
            ..Cleaned::default()
        })
    }

    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned> {
        const OPERATION: &str = "count what can be cleaned";
        let database = &self.0.database;
        let statements = &self.0.schema_statements;
        let wrong = |error: sqlx::Error| database.fail(OPERATION, &error);
        let rights = needing("SELECT on the tables queue and dedup");
        let mut found = Cleaned::default();
        let span = self.0.span_of_cleaning(request.retention).await?;
        let statement = match span {
            None => &statements.clean_count,
            Some(_) => &statements.clean_count_old,
        };
        let mut behind = i64::MIN;
        loop {
            let mut query = sqlx::query(statement.text())
                .bind(behind)
                .bind(COUNT_ROWS)
                .bind(micros(request.retention));
            if let Some(span) = span {
                query = query.bind(span);
            }
            let row = database.row(OPERATION, query).await.map_err(&rights)?;
            let number = |name: &str| row.try_get::<i64, _>(name).map_err(wrong);
            found.events += number("events")?.unsigned_abs();
            if number("looked_at")? < COUNT_ROWS {
                break;
            }
            behind = number("last_id")?;
        }
        let query =
            sqlx::query(statements.clean_count_dedup.text()).bind(micros(request.dedup_retention));
        let row = database.row(OPERATION, query).await.map_err(rights)?;
        let dedup_keys: i64 = row.try_get("dedup_keys").map_err(wrong)?;
        found.dedup_keys = dedup_keys.unsigned_abs();
        Ok(found)
    }
}

/// Rows that one statement counts: far below the time limit of a statement.
const COUNT_ROWS: i64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_goes_on_for_ten_minutes_and_then_from_the_front() {
        let cursor = Cursor::default();
        let began = Instant::now();
        let first = cursor.next(began);
        assert_eq!(first.last_id, i64::MIN);
        cursor.set(Some(Round {
            last_id: 7,
            ..first
        }));
        let within = began + Cursor::ROUND_MAX.mul_f64(0.99);
        assert_eq!(cursor.next(within).last_id, 7);
        assert_eq!(cursor.next(began + Cursor::ROUND_MAX).last_id, i64::MIN);
        cursor.set(None);
        assert_eq!(cursor.next(began).last_id, i64::MIN);
    }
}
