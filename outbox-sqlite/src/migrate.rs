//! The schema's versions and how a file comes to the newest.

use outbox_core::{Error, Migrated, Migration, Result, check_schema};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

/// The clock of this machine, read by SQLite: milliseconds since 1970.
macro_rules! now {
    () => {
        "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    };
}
pub(crate) use now;

/// The migrations in order; the version is the place in the list, from 1.
const SCRIPTS: [(&str, &str); 1] = [("queue", include_str!("../migrations/0001_queue.sql"))];

/// The version that this program works with.
pub(crate) const VERSION: i32 = 1;

const _: () = assert!(
    SCRIPTS.len() == VERSION as usize,
    "a version for every script"
);

/// All migrations, for printing and for tools that apply them themselves.
pub fn migrations() -> Vec<Migration> {
    (1..)
        .zip(SCRIPTS)
        .map(|(version, (name, text))| Migration {
            version,
            name,
            sql: text.replace("{now}", now!()),
        })
        .collect()
}

/// The version of the file; 0 when there is none.
pub(crate) async fn found(connection: &mut SqliteConnection) -> sqlx::Result<i32> {
    let tables =
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox_migration'";
    let tables: i64 = sqlx::query(tables)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    if tables == 0 {
        return Ok(0);
    }
    sqlx::query("SELECT coalesce(max(version), 0) FROM outbox_migration")
        .fetch_one(connection)
        .await?
        .try_get(0)
}

/// Applies what is missing, in the transaction of this connection.
pub(crate) async fn apply(
    connection: &mut SqliteConnection,
    fail: impl Fn(sqlx::Error) -> Error,
) -> Result<Migrated> {
    let from = found(connection).await.map_err(&fail)?;
    if from > VERSION {
        check_schema("migrate", from, VERSION)?;
    }
    for migration in migrations() {
        if migration.version > from {
            sqlx::raw_sql(AssertSqlSafe(migration.sql))
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
        let all = migrations();
        assert_eq!(all.last().unwrap().version, VERSION);
        for migration in &all {
            let mark = format!(
                "INSERT INTO outbox_migration (version, name) VALUES ({}, '{}')",
                migration.version, migration.name
            );
            assert!(migration.sql.contains(&mark), "{mark}");
            assert!(!migration.sql.contains("{now}"));
        }
    }
}
