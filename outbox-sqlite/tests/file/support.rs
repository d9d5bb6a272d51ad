//! A fresh file for a test.

use std::path::PathBuf;

use outbox_core::{AcquireRequest, Batch, ClaimLimit, Event, Store as _, TopicSet, WorkerId};
use outbox_sqlite::{SqliteConfig, SqliteQueue};
use sqlx::{
    AssertSqlSafe, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tempfile::TempDir;

/// A folder with a database; both go when it is dropped.
pub(crate) struct File {
    pub(crate) config: SqliteConfig,
    /// A writer's connections, as a service has them.
    pub(crate) pool: SqlitePool,
    folder: TempDir,
}

impl File {
    pub(crate) async fn migrated() -> Self {
        let file = Self::missing();
        Self::migrate(&file.config).await;
        file
    }

    pub(crate) async fn migrate(config: &SqliteConfig) {
        let queue = SqliteQueue::connect(config.clone()).await.unwrap();
        queue.migrate().await.unwrap();
    }

    /// The folder without the file.
    pub(crate) fn missing() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.db");
        let options = SqliteConnectOptions::new().filename(&path);
        Self {
            config: SqliteConfig::new(format!("sqlite:{}", path.display())),
            pool: SqlitePoolOptions::new().connect_lazy_with(options),
            folder,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("outbox.db")
    }

    pub(crate) async fn queue(&self) -> SqliteQueue {
        SqliteQueue::connect(self.config.clone()).await.unwrap()
    }

    pub(crate) async fn sql(&self, text: &str) {
        let done = sqlx::raw_sql(AssertSqlSafe(text.to_owned()))
            .execute(&self.pool)
            .await;
        done.unwrap();
    }
}

/// An event of this key.
pub(crate) fn event(key: &str) -> Event {
    Event::new("t", "Tested").key(key).bytes("x").unwrap()
}

/// Claims once all that is due, where there is one lane.
pub(crate) async fn claim(queue: &SqliteQueue) -> Batch {
    let request = AcquireRequest {
        route: "r",
        topics: &TopicSet::all(),
        worker: &WorkerId("w".to_owned()),
        held: &[],
    };
    let lanes = queue.acquire(&request).await.unwrap().lanes;
    assert_eq!(lanes.len(), 1);
    let limit = ClaimLimit {
        events: 1000,
        bytes: usize::MAX,
    };
    lanes[0].claim(limit).await.unwrap()
}
