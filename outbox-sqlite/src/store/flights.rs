//! Claims in flight: noting them, losing them at a lease's end, giving them back.

use outbox_core::{BatchSource, BatchToken};
use sqlx::{Row as _, SqliteConnection};

use super::topics::Scope;

/// A claim that is not settled.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) id: i64,
    pub(crate) token: String,
    pub(crate) source: BatchSource,
    pub(crate) suspect: bool,
    pub(crate) lease_until: i64,
}

macro_rules! open {
    () => {
        "SELECT id, token, parked, suspect, lease_until FROM outbox_flight
        WHERE route = ?1 AND lane = ?2 AND applied IS NULL ORDER BY id"
    };
}

/// The statement, explained.
#[cfg(test)]
pub(crate) const OPEN_EXPLAINED: &str = concat!("EXPLAIN QUERY PLAN ", open!());

/// The lane's open claims in their order.
pub(crate) async fn open(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> sqlx::Result<Vec<Flight>> {
    let rows = scope.query(open!()).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Flight {
                id: row.try_get(0)?,
                token: row.try_get(1)?,
                source: if row.try_get(2)? {
                    BatchSource::Parked
                } else {
                    BatchSource::Stream
                },
                suspect: row.try_get(3)?,
                lease_until: row.try_get(4)?,
            })
        })
        .collect()
}

/// Notes a claim.
pub(crate) async fn launch(
    connection: &mut SqliteConnection,
    scope: &Scope,
    token: BatchToken,
    source: BatchSource,
    suspect: bool,
    lease_until: i64,
) -> sqlx::Result<()> {
    let text = "INSERT INTO outbox_flight (route, lane, token, parked, suspect, lease_until)
        VALUES (?1, ?2, ?6, ?7, ?8, ?9)";
    scope
        .query(text)
        .bind(token.0.to_string())
        .bind(source == BatchSource::Parked)
        .bind(suspect)
        .bind(lease_until)
        .execute(connection)
        .await?;
    Ok(())
}

/// How the rows of a claim that ends without its settle come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Its process died, or its lease ended: the attempt counts, and so does the crash.
    Crashed,
    /// It was not sent: the attempt is given back.
    Returned,
}

/// Ends a claim.
pub(crate) async fn end(
    connection: &mut SqliteConnection,
    flight: &Flight,
    how: End,
) -> sqlx::Result<()> {
    let rows = match how {
        End::Crashed => {
            "UPDATE outbox_queue SET status = 'pending', lease_token = NULL,
                crashes = max(0, min(crashes, 2147483646)) + 1
            WHERE status = 'processing' AND lease_token = ?1"
        }
        End::Returned => {
            "UPDATE outbox_queue SET status = 'pending', lease_token = NULL,
                attempts = max(attempts - 1, 0)
            WHERE status = 'processing' AND lease_token = ?1"
        }
    };
    sqlx::query(rows)
        .bind(&flight.token)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM outbox_flight WHERE id = ?1")
        .bind(flight.id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Ends claims whose lease ended; later ones of the stream go with the first such. `now` is the
/// database's; none: all of them.
pub(crate) async fn expire(
    connection: &mut SqliteConnection,
    scope: &Scope,
    now: Option<i64>,
) -> sqlx::Result<()> {
    let mut stream_lost = false;
    for flight in open(connection, scope).await? {
        let crashed = now.is_none_or(|now| flight.lease_until <= now);
        let voided = flight.source == BatchSource::Stream && stream_lost;
        if crashed {
            stream_lost |= flight.source == BatchSource::Stream;
            end(connection, &flight, End::Crashed).await?;
        } else if voided {
            end(connection, &flight, End::Returned).await?;
        }
    }
    Ok(())
}

/// Gives back all that the lane's owner has in flight.
pub(crate) async fn give_back(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> sqlx::Result<()> {
    for flight in open(connection, scope).await? {
        end(connection, &flight, End::Returned).await?;
    }
    Ok(())
}

/// Gives back what was claimed from the stream behind this claim, or all of it.
pub(crate) async fn rewind(connection: &mut SqliteConnection, scope: &Scope) -> sqlx::Result<()> {
    for flight in open(connection, scope).await? {
        if flight.source == BatchSource::Stream {
            end(connection, &flight, End::Returned).await?;
        }
    }
    Ok(())
}
