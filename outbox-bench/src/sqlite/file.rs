//! A fresh file for each run.

use std::sync::Arc;

use anyhow::Result;
use outbox_core::{DoneMode, Enqueue as _, Event, Store as _};
use outbox_sqlite::{SqliteConfig, SqliteOutbox, SqliteQueue};
use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tempfile::TempDir;

use crate::fill::event;

/// Events of a transaction that fills a file.
const CHUNK: usize = 1000;

/// A folder with a database; both go when it is dropped.
pub(crate) struct File(TempDir);

impl File {
    /// A migrated file with nothing in it.
    pub(crate) async fn empty() -> Result<Self> {
        let file = Self(tempfile::tempdir()?);
        file.store(DoneMode::Keep, 1).await?.migrate().await?;
        Ok(file)
    }

    /// A file with so many pending events, none of them in the log.
    pub(crate) async fn filled(count: usize) -> Result<Self> {
        let file = Self::empty().await?;
        let mut conn = file.connection().await?;
        let outbox = SqliteOutbox::new();
        for from in (0..count).step_by(CHUNK) {
            let to = (from + CHUNK).min(count);
            let chunk: Vec<Event> = (from..to).map(|n| event("t", n)).collect::<Result<_>>()?;
            let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
            outbox.enqueue_all(&mut tx, &chunk).await?;
            tx.commit().await?;
        }
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&mut conn)
            .await?;
        conn.close().await?;
        Ok(file)
    }

    /// A connection of the store's own settings.
    pub(crate) async fn connection(&self) -> Result<SqliteConnection> {
        let options = SqliteConnectOptions::new()
            .filename(self.0.path().join("bench.db"))
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        Ok(options.connect().await?)
    }

    pub(crate) async fn store(&self, done: DoneMode, lanes: usize) -> Result<Arc<SqliteQueue>> {
        let path = self.0.path().join("bench.db");
        let mut config = SqliteConfig::new(format!("sqlite:{}", path.display()));
        config.done = done;
        config.lanes = lanes;
        Ok(Arc::new(SqliteQueue::connect(config).await?))
    }
}
