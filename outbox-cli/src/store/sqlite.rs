//! The store in a SQLite file.

use outbox_core::DoneMode;
use outbox_sqlite::{SqliteConfig, SqliteQueue};

use super::{
    Arc, Enqueued, Event, Failure, OutboxStore, Result, StoreConfig, Writer, async_trait, script,
};
use crate::config::{Partitioning, set};

pub(super) async fn open(config: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
    Ok(Arc::new(SqliteQueue::connect(settings(&config)?).await?))
}

#[expect(clippy::unnecessary_wraps, reason = "the form of every store")]
pub(super) fn schema_version() -> Result<i32, Failure> {
    let migrations = outbox_sqlite::migrations();
    Ok(migrations.last().map_or(0, |migration| migration.version))
}

pub(super) fn migrations(schema: Option<&str>) -> Result<String, Failure> {
    refuse_schema(schema)?;
    Ok(outbox_sqlite::migrations()
        .iter()
        .map(|migration| script(migration, "BEGIN IMMEDIATE"))
        .collect())
}

#[async_trait]
impl Writer for SqliteQueue {
    async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        SqliteQueue::enqueue(self, events).await
    }
}

pub(super) async fn writer(config: StoreConfig) -> Result<Arc<dyn Writer>, Failure> {
    Ok(Arc::new(SqliteQueue::connect(settings(&config)?).await?))
}

/// The same keys as for PostgreSQL, as far as they have a meaning: a statement takes longer than its
/// limit only when it waits for another writer, and workers are lanes.
fn settings(written: &StoreConfig) -> Result<SqliteConfig, Failure> {
    refuse_schema(written.schema.as_deref())?;
    refuse_partitions(written.partitions)?;
    let mut config = SqliteConfig::new(written.url.expose());
    set(&mut config.pool_size, written.pool_size);
    set(&mut config.connect_timeout, written.connect_timeout);
    set(&mut config.busy_timeout, written.statement_timeout);
    set(&mut config.lease, written.lease);
    set(&mut config.lanes, written.workers);
    set(&mut config.event_bytes_max, written.event_bytes_max);
    set(&mut config.done, written.keep_done.map(DoneMode::kept));
    Ok(config)
}

fn refuse_partitions(partitions: Option<Partitioning>) -> Result<(), Failure> {
    match partitions {
        None | Some(Partitioning::None) => Ok(()),
        Some(_) => Err(Failure::usage(
            "configuration: a SQLite file has no partitions — leave store.partitions out",
        )),
    }
}

fn refuse_schema(schema: Option<&str>) -> Result<(), Failure> {
    match schema {
        None => Ok(()),
        Some(_) => Err(Failure::usage(
            "configuration: a SQLite file has no schemas — leave store.schema out, or name another file",
        )),
    }
}
