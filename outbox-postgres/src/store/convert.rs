//! A plain table becomes one of partitions, with all that hangs on it or not at all; whether the table is
//! as the setting says.

use outbox_core::{Error, ErrorKind, Result};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::Queue;
use crate::{
    config::Partitions,
    sql::{self, Schema},
};

/// How many things in the way an error names.
const NAMED_MAX: i64 = 10;

/// What a conversion to these has done, for people; none where there is nothing to make.
pub(super) const fn made(partitions: Partitions) -> Option<&'static str> {
    match partitions {
        Partitions::None => None,
        Partitions::Daily => Some("made the empty table one of daily partitions"),
        Partitions::Monthly => Some("made the empty table one of monthly partitions"),
    }
}

/// Makes an empty plain table one of partitions, in the migrator's transaction; whether it was one that
/// was to become so. `is_new`: nobody has seen the table yet.
///
/// # Errors
/// `Configuration` with what to do when it holds rows, or has what would be lost.
pub(super) async fn convert(
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

impl Queue {
    /// Whether the table has the partitions that the setting says, if it says any.
    pub(super) async fn check_partitions(&self) -> Result<()> {
        const OPERATION: &str = "check settings";
        let Some(wanted) = self.config.partitions else {
            return Ok(());
        };
        let found = self.table().await?.partitions;
        if found == wanted {
            return Ok(());
        }
        if found != Partitions::None {
            return Err(Error::new(
                ErrorKind::Configuration,
                OPERATION,
                "the table has other partitions than the setting says, and a migration does not change them: say what it has, or leave the setting out",
            )
            .context("setting", "partitions")
            .context("value", wanted.name())
            .context("table", found.name()));
        }
        let query = sqlx::query(self.schema_statements.partition_obstacles.text())
            .bind(true)
            .bind(NAMED_MAX);
        let row = self.database.row(OPERATION, query).await?;
        let refusal = in_the_way(&row, ErrorKind::SchemaOlder, OPERATION)
            .map_err(|error| self.database.fail(OPERATION, &error))?;
        let pending = || {
            Error::new(
                ErrorKind::SchemaOlder,
                OPERATION,
                "the table is plain and empty, and a migration makes it one of partitions",
            )
            .context("setting", "partitions")
        };
        Err(refusal
            .unwrap_or_else(pending)
            .context("value", wanted.name())
            .context("table", found.name()))
    }
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
