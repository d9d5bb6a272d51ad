//! A plain table becomes one of partitions, with all that hangs on it or not at all.

use outbox_core::{Error, ErrorKind, Result};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use crate::sql::{self, Schema};

/// How many things in the way an error names.
const NAMED_MAX: i64 = 10;

/// Makes an empty plain table one of partitions, in the migrator's transaction; whether it was one that
/// was to become so. `is_new`: nobody has seen the table yet.
///
/// # Errors
/// `Configuration` with what to do when it holds rows, or has what would be lost.
pub(crate) async fn convert(
    connection: &mut PgConnection,
    schema: &Schema,
    is_new: bool,
    fail: impl Fn(sqlx::Error) -> Error,
) -> Result<bool> {
    let run = |text: &str| sql::script(schema, text).text();
    let partitioned: bool = sqlx::query(run(sql::PARTITION_STATE))
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get("partitioned"))
        .map_err(&fail)?;
    if partitioned {
        return Ok(false);
    }
    sqlx::raw_sql(run(sql::PARTITION_LOCK))
        .execute(&mut *connection)
        .await
        .map_err(&fail)?;
    let found = sqlx::query(run(sql::PARTITION_OBSTACLES))
        .bind(!is_new)
        .bind(NAMED_MAX)
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| in_the_way(&row, ErrorKind::Configuration, "migrate"))
        .map_err(&fail)?;
    if let Some(refusal) = found {
        return Err(refusal);
    }
    sqlx::raw_sql(sql::conversion(schema).text())
        .execute(connection)
        .await
        .map_err(&fail)?;
    Ok(true)
}

/// Why a table stays as it is, as an error of this kind.
fn in_the_way(
    found: &PgRow,
    kind: ErrorKind,
    operation: &'static str,
) -> sqlx::Result<Option<Error>> {
    let refuse =
        |what: &'static str| Error::new(kind, operation, what).context("setting", "partitions");
    if found.try_get("filled")? {
        return Ok(Some(refuse(
            "the table holds rows and is not partitioned: let relays drain it, purge what is delivered, settle the dead letters and migrate again, or leave partitions at none",
        )));
    }
    let obstacles: Option<String> = found.try_get("obstacles")?;
    Ok(obstacles.map(|obstacles| {
        refuse(
            "the table has what would be lost, or what one of partitions can't have: remove it, migrate again and put it back where that works, or leave partitions at none",
        )
        .context("in_the_way", obstacles)
    }))
}
