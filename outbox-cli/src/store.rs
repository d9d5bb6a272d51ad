//! Stores by configuration.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{
    Enqueued, ErrorKind, Event, OutboxStore, Result, STORE_CHECK_TIMEOUT, check_within,
};

use crate::{
    config::{StoreConfig, StoreKind},
    exit::Failure,
};

/// Opens the store.
pub(crate) async fn open(config: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
    match config.kind {
        StoreKind::PostgresQueue => postgres::open(config).await,
        StoreKind::Sqlite => sqlite::open(config).await,
    }
}

/// Opens the store for a command that only reads, and makes sure that it can be read: rights to
/// change it, and a server that takes changes, are not needed.
pub(crate) async fn open_to_read(config: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
    let store = open(config).await?;
    match check(&*store).await {
        Err(error) if !matches!(error.kind(), ErrorKind::Unauthorized | ErrorKind::ReadOnly) => {
            Err(error.into())
        }
        _ => Ok(store),
    }
}

/// Opens the store for a command that changes it, and makes sure that it can.
pub(crate) async fn open_to_change(config: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
    let store = open(config).await?;
    check(&*store).await?;
    Ok(store)
}

/// Whether a relay could work there, as a relay asks it.
pub(crate) async fn check(store: &dyn OutboxStore) -> Result<()> {
    check_within(STORE_CHECK_TIMEOUT, || store.check()).await
}

/// Whether the store is as its settings say, where it is one that a relay could work in.
pub(crate) async fn check_settings(store: &dyn OutboxStore) -> Result<()> {
    check_within(STORE_CHECK_TIMEOUT, || store.check_settings()).await
}

/// The version of the schema that this program works with.
pub(crate) fn schema_version(kind: StoreKind) -> Result<i32, Failure> {
    match kind {
        StoreKind::PostgresQueue => postgres::schema_version(),
        StoreKind::Sqlite => sqlite::schema_version(),
    }
}

/// The SQL of all versions of the schema.
pub(crate) fn migrations(kind: StoreKind, schema: Option<&str>) -> Result<String, Failure> {
    match kind {
        StoreKind::PostgresQueue => postgres::migrations(schema),
        StoreKind::Sqlite => sqlite::migrations(schema),
    }
}

/// Writes events into a store of any kind.
#[async_trait]
pub(crate) trait Writer: Send + Sync {
    /// Writes events in a transaction of their own and tells which were written.
    async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>>;
}

/// Opens the store for a command that writes events.
pub(crate) async fn writer(config: StoreConfig) -> Result<Arc<dyn Writer>, Failure> {
    match config.kind {
        StoreKind::PostgresQueue => postgres::writer(config).await,
        StoreKind::Sqlite => sqlite::writer(config).await,
    }
}

/// One version of a schema as a script for the database's own program.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn script(migration: &outbox_core::Migration, begin: &str) -> String {
    let outbox_core::Migration { version, name, sql } = migration;
    let sql = sql.trim_end();
    format!("-- version {version}: {name}\n{begin};\n{sql}\nCOMMIT;\n\n")
}

#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "postgres")]
mod postgres {
    use outbox_core::DoneMode;
    use outbox_postgres::{Partitions, PgConfig, PgQueue};

    use super::{
        Arc, Enqueued, Event, Failure, OutboxStore, Result, StoreConfig, Writer, async_trait,
        script,
    };
    use crate::config::{Partitioning, set};

    pub(super) async fn open(config: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
        Ok(Arc::new(PgQueue::connect(settings(config)).await?))
    }

    pub(super) fn schema_version() -> Result<i32, Failure> {
        let migrations = outbox_postgres::migrations(&PgConfig::new("").schema)?;
        Ok(migrations.last().map_or(0, |migration| migration.version))
    }

    pub(super) fn migrations(schema: Option<&str>) -> Result<String, Failure> {
        let schema = schema.map_or_else(|| PgConfig::new("").schema, str::to_owned);
        let migrations = outbox_postgres::migrations(&schema)?;
        Ok(migrations
            .iter()
            .map(|migration| script(migration, "BEGIN"))
            .collect())
    }

    #[async_trait]
    impl Writer for PgQueue {
        async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
            PgQueue::enqueue(self, events).await
        }
    }

    pub(super) async fn writer(config: StoreConfig) -> Result<Arc<dyn Writer>, Failure> {
        Ok(Arc::new(PgQueue::connect(settings(config)).await?))
    }

    fn settings(written: StoreConfig) -> PgConfig {
        let mut config = PgConfig::new(written.url.expose());
        set(&mut config.schema, written.schema);
        set(&mut config.pool_size, written.pool_size);
        set(&mut config.connect_timeout, written.connect_timeout);
        set(&mut config.statement_timeout, written.statement_timeout);
        set(&mut config.lease, written.lease);
        set(&mut config.workers, written.workers);
        set(&mut config.event_bytes_max, written.event_bytes_max);
        set(&mut config.done, written.keep_done.map(DoneMode::kept));
        config.partitions = written.partitions.map(|written| match written {
            Partitioning::None => Partitions::None,
            Partitioning::Daily => Partitions::Daily,
            Partitioning::Monthly => Partitions::Monthly,
        });
        config
    }
}

/// What stands in the place of a store that the program was built without.
#[cfg(not(all(feature = "postgres", feature = "sqlite")))]
macro_rules! left_out {
    ($module:ident, $name:literal, $feature:literal) => {
        mod $module {
            use super::{Arc, Failure, OutboxStore, StoreConfig, Writer};

            fn left_out<T>() -> Result<T, Failure> {
                Err(Failure::usage(concat!(
                    "configuration: this program was built without ",
                    $name,
                    " — build it with the feature ",
                    $feature
                )))
            }

            pub(super) async fn open(_: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
                left_out()
            }

            pub(super) fn schema_version() -> Result<i32, Failure> {
                left_out()
            }

            pub(super) fn migrations(_: Option<&str>) -> Result<String, Failure> {
                left_out()
            }

            pub(super) async fn writer(_: StoreConfig) -> Result<Arc<dyn Writer>, Failure> {
                left_out()
            }
        }
    };
}

#[cfg(not(feature = "postgres"))]
left_out!(postgres, "PostgreSQL", "postgres");
#[cfg(not(feature = "sqlite"))]
left_out!(sqlite, "SQLite", "sqlite");
