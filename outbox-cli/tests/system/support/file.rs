//! A SQLite file as the store of a relay process.

use outbox_core::{Enqueue as _, Event};
use outbox_sqlite::SqliteOutbox;
use serde_json::Value;
use sqlx::{
    AssertSqlSafe,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteSynchronous},
};
use tempfile::TempDir;

use super::{Settings, patience, until};

/// A file with the schema, and the program on it.
pub(crate) struct File {
    pub(crate) settings: Settings,
    pool: SqlitePool,
    _folder: TempDir,
}

impl File {
    /// A new file, with these settings of the program beside its own.
    pub(crate) fn new(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.db");
        let settings = settings.set("store.url", format!("sqlite:{}", path.display()));
        settings.run(&["migrate"]);
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(patience());
        Self {
            settings,
            pool: SqlitePool::connect_lazy_with(options),
            _folder: folder,
        }
    }

    /// Writes an event.
    pub(crate) fn enqueue(&self, topic: &str, key: &str, payload: &str) {
        let event = ["enqueue", "--topic", topic, "--type", "T", "--key", key];
        let payload = ["--payload", payload];
        self.settings.run(&[&event[..], &payload].concat());
    }

    /// Writes events in one transaction, as a service does.
    pub(crate) async fn write(&self, events: &[Event]) {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let outbox = SqliteOutbox::new();
        outbox.enqueue_all(&mut transaction, events).await.unwrap();
        transaction.commit().await.unwrap();
    }

    /// How many events fit the condition.
    pub(crate) async fn count(&self, condition: &str) -> usize {
        let query = format!("SELECT count(*) FROM outbox_queue WHERE {condition}");
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(query))
            .fetch_one(&self.pool)
            .await
            .unwrap();
        count.try_into().unwrap()
    }

    /// Waits until `outbox status` counts so many.
    pub(crate) async fn until_counted(&self, what: &str, number: u64) {
        until(what, async || {
            let status = self.settings.run(&["status", "--json"]);
            let status: Value = serde_json::from_str(&status).unwrap();
            status[what]["value"] == number
        })
        .await;
    }
}
