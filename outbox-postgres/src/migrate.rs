//! The schema's versions and how a database comes to the newest.

use outbox_core::{Error, Migrated, Migration, Result, check_schema};
use sqlx::{PgConnection, Row as _};

use crate::sql::{Schema, SchemaStatements, script};

/// The migrations in order; the version is the place in the list, from 1.
const SCRIPTS: [(&str, &str); 2] = [
    ("queue", include_str!("../migrations/0001_queue.sql")),
    ("dedup", include_str!("../migrations/0002_dedup.sql")),
];

/// The version that this program works with.
pub(crate) const VERSION: i32 = 2;

const _: () = assert!(
    SCRIPTS.len() == VERSION as usize,
    "a version for every script"
);

/// All migrations of a schema, for printing and for tools that apply them themselves.
///
/// # Errors
/// `Configuration` when the schema's name can't be used.
pub fn migrations(schema: &str) -> Result<Vec<Migration>> {
    let schema = Schema::new(schema)?;
    Ok((1..)
        .zip(SCRIPTS)
        .map(|(version, (name, text))| Migration {
            version,
            name,
            sql: schema.apply(text),
        })
        .collect())
}

/// Applies what is missing, in the transaction of this connection.
pub(crate) async fn apply(
    connection: &mut PgConnection,
    schema: &Schema,
    fail: impl Fn(sqlx::Error) -> Error,
) -> Result<Migrated> {
    let statements = SchemaStatements::new(schema);
    // What is waited for must be seen as it is then: a snapshot from before would show neither what another
    // migrator did nor a row that a writer committed meanwhile. Another migrator may take long; the lock
    // below is what is waited for.
    sqlx::raw_sql(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '10min'",
    )
    .execute(&mut *connection)
    .await
    .map_err(&fail)?;
    sqlx::query(statements.lock.text())
        .execute(&mut *connection)
        .await
        .map_err(&fail)?;
    let found: bool = sqlx::query(statements.found.text())
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(&fail)?;
    let from: i32 = if found {
        sqlx::query(statements.version.text())
            .fetch_one(&mut *connection)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(&fail)?
    } else {
        0
    };
    if from > VERSION {
        check_schema("migrate", from, VERSION)?;
    }
    for (version, (_, text)) in (1..).zip(SCRIPTS) {
        if version > from {
            sqlx::raw_sql(script(schema, text).text())
                .execute(&mut *connection)
                .await
                .map_err(&fail)?;
        }
    }
    Ok(Migrated {
        from,
        to: VERSION,
        also: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_and_complete() {
        let all = migrations("shop").unwrap();
        assert_eq!(all.last().unwrap().version, VERSION);
        for migration in &all {
            let mark = format!(
                "INSERT INTO \"shop\".migration (version, name) VALUES ({}, '{}')",
                migration.version, migration.name
            );
            assert!(migration.sql.contains(&mark), "{mark}");
            assert!(!migration.sql.contains("{schema}"));
        }
    }
}
