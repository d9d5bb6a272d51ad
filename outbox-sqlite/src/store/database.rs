//! Connections to the file: reads beside the writer, writes one after the other.

use std::{fmt, path::PathBuf, sync::OnceLock, time::Duration};

use outbox_core::{Error, ErrorKind, Result};
use sqlx::{
    ConnectOptions as _, Connection as _, Row as _, Sqlite, SqlitePool, Transaction,
    pool::PoolConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    config::SqliteConfig,
    error::{MOVED, from_sqlx, is_busy},
    migrate::now,
};

/// The file with its connections. Each connection works on a thread of its own: no call of ours
/// blocks the runtime.
pub(crate) struct Database {
    pool: SqlitePool,
    options: SqliteConnectOptions,
    path: PathBuf,
    name: String,
    /// Waiting for SQLite's own lock means sleeping and asking again; in one process it is fairer
    /// and faster to queue.
    writing: Mutex<()>,
    /// Which file was opened first.
    opened: OnceLock<FileId>,
}

/// What tells files apart that had one path after the other.
type FileId = (u64, u64);

/// A transaction that holds SQLite's lock for writing from its start. Dropped without a commit, it is
/// rolled back, also when the call that began it was cancelled.
pub(crate) struct Write<'a> {
    pub(crate) tx: Transaction<'static, Sqlite>,
    database: &'a Database,
    operation: &'static str,
    _turn: MutexGuard<'a, ()>,
}

impl Write<'_> {
    pub(crate) async fn commit(self) -> Result<()> {
        let Self {
            tx,
            database,
            operation,
            ..
        } = self;
        let done = tx.commit().await;
        done.map_err(|error| database.fail(operation, &error))
    }
}

impl Database {
    pub(crate) fn new(config: &SqliteConfig) -> Result<Self> {
        let path = config.path()?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(false)
            .journal_mode(SqliteJournalMode::Wal)
            // With WAL the usual NORMAL may lose the last commits at a power cut, and with them the
            // knowledge of what was published.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(config.busy_timeout)
            // Ours tells of failures by errors; the driver's log would repeat every statement.
            .disable_statement_logging();
        let pool = SqlitePoolOptions::new()
            .max_connections(config.pool_size)
            .acquire_timeout(config.connect_timeout)
            .test_before_acquire(false)
            .connect_lazy_with(options.clone());
        Ok(Self {
            pool,
            options,
            name: path.display().to_string(),
            path,
            writing: Mutex::new(()),
            opened: OnceLock::new(),
        })
    }

    pub(crate) fn fail(&self, operation: &'static str, error: &sqlx::Error) -> Error {
        from_sqlx(operation, Some(&self.name), error)
    }

    /// Makes the file, with nothing in it, unless it is there.
    pub(crate) async fn create(&self, operation: &'static str) -> Result<()> {
        let options = self.options.clone().create_if_missing(true);
        let connection = options.connect().await;
        let connection = connection.map_err(|error| self.fail(operation, &error))?;
        let closed = connection.close().await;
        closed.map_err(|error| self.fail(operation, &error))
    }

    /// A connection for single statements. A statement commits by itself: when the caller is
    /// dropped, it is still finished and no transaction stays open.
    pub(crate) async fn connection(
        &self,
        operation: &'static str,
    ) -> Result<PoolConnection<Sqlite>> {
        self.demand_file(operation)?;
        let connection = self.pool.acquire().await;
        connection.map_err(|error| self.fail(operation, &error))
    }

    /// Begins a transaction that writes, when it is this caller's turn.
    pub(crate) async fn write(&self, operation: &'static str) -> Result<Write<'_>> {
        let turn = self.writing.lock().await;
        self.demand_file(operation)?;
        let tx = self.pool.begin_with("BEGIN IMMEDIATE").await;
        Ok(Write {
            tx: tx.map_err(|error| self.fail(operation, &error))?,
            database: self,
            operation,
            _turn: turn,
        })
    }

    /// Whether the file can be written, without waiting for another writer: that there is one shows it.
    pub(crate) async fn try_write(&self, operation: &'static str) -> Result<()> {
        let tried = async {
            let options = self.options.clone().busy_timeout(Duration::ZERO);
            let mut connection = options.connect().await?;
            match connection.begin_with("BEGIN IMMEDIATE").await {
                Ok(tx) => tx.rollback().await,
                Err(error) if is_busy(&error) => Ok(()),
                Err(error) => Err(error),
            }?;
            connection.close().await
        };
        tried.await.map_err(|error| self.fail(operation, &error))
    }

    /// SQLite goes on in a file that was deleted under it: what is written there is lost.
    fn demand_file(&self, operation: &'static str) -> Result<()> {
        let Some(now) = file_id(&self.path) else {
            // Whether it ever was there is the driver's to say, unless it was.
            return match self.opened.get() {
                Some(_) => Err(self.moved(operation)),
                None => Ok(()),
            };
        };
        if *self.opened.get_or_init(|| now) == now {
            Ok(())
        } else {
            Err(self.moved(operation))
        }
    }

    fn moved(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Unavailable, operation, MOVED).context("file", &self.name)
    }
}

#[cfg(unix)]
fn file_id(path: &std::path::Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Elsewhere an open file can't be deleted.
#[cfg(not(unix))]
fn file_id(path: &std::path::Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|_| (0, 0))
}

/// The database's clock: milliseconds since 1970.
pub(crate) async fn clock(connection: &mut sqlx::SqliteConnection) -> sqlx::Result<i64> {
    sqlx::query(concat!("SELECT ", now!()))
        .fetch_one(connection)
        .await?
        .try_get(0)
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("file", &self.name)
            .finish_non_exhaustive()
    }
}
