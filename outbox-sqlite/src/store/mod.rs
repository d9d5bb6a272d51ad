//! The queue in a file: rows with a state, worked by lanes that keep the order of each key.

mod acquire;
mod clean;
mod database;
mod dead;
mod enqueue;
mod flights;
mod inspect;
mod keys;
mod lane;
#[cfg(test)]
mod no_room;
#[cfg(test)]
mod plans;
mod row;
mod select;
mod settle;
mod topics;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{AcquireRequest, Acquired, Lane, Migrated, Result, Store, check_schema};
use tokio::sync::Notify;

use self::database::Database;
pub use self::lane::SqliteLane;
use crate::{config::SqliteConfig, migrate};

/// The queue in a SQLite file: [`Store`], dead letters and inspection. Cheap to clone.
#[derive(Clone)]
pub struct SqliteQueue(Arc<Queue>);

/// What the queue and its lanes share.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) database: Database,
    pub(crate) config: SqliteConfig,
    /// Rings when this handle made work for a relay on it.
    pub(crate) bell: Notify,
}

impl SqliteQueue {
    /// A queue with connections of its own. Opens the file when it is first used: `check` tells
    /// whether that works.
    ///
    /// # Errors
    /// `Configuration` when a setting can't be used.
    #[expect(
        clippy::unused_async,
        reason = "callers need not change when connecting early becomes worth while"
    )]
    pub async fn connect(config: SqliteConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self(Arc::new(Queue {
            database: Database::new(&config)?,
            config,
            bell: Notify::new(),
        })))
    }
}

#[async_trait]
impl Store for SqliteQueue {
    fn name(&self) -> &'static str {
        "sqlite-queue"
    }

    fn ordered(&self) -> bool {
        true
    }

    async fn migrate(&self) -> Result<Migrated> {
        const OPERATION: &str = "migrate";
        let database = &self.0.database;
        database.create(OPERATION).await?;
        let mut write = database.write(OPERATION).await?;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let migrated = migrate::apply(&mut write.tx, fail).await?;
        write.commit().await?;
        Ok(migrated)
    }

    async fn check(&self) -> Result<()> {
        const OPERATION: &str = "check";
        let database = &self.0.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let mut connection = database.connection(OPERATION).await?;
        let version = migrate::found(&mut connection).await.map_err(fail)?;
        check_schema(OPERATION, version, migrate::VERSION)?;
        drop(connection);
        // A file or folder that can't be written is found here and not by the first claim.
        database.try_write(OPERATION).await
    }

    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired> {
        let (taken, surrender) = acquire::acquire(&self.0, request).await?;
        let lanes = taken
            .into_iter()
            .map(|(scope, epoch)| SqliteLane::new(Arc::clone(&self.0), scope, epoch))
            .map(|lane| Arc::new(lane) as Arc<dyn Lane>)
            .collect();
        Ok(Acquired { lanes, surrender })
    }

    async fn wait(&self, timeout: Duration) {
        // The timeout is an answer too: polling is the bound.
        let _ = tokio::time::timeout(timeout, self.0.bell.notified()).await;
    }
}

impl fmt::Debug for SqliteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteQueue")
            .field("database", &self.0.database)
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}
