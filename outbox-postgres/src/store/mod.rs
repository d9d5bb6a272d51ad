//! The queue layout: rows with a state, worked by competing lanes.

mod clean;
mod convert;
mod database;
mod dead;
mod enqueue;
mod inspect;
mod lane;
mod marks;
mod partition;
mod row;
mod verdicts;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{
    AcquireRequest, Acquired, DoneMode, Error, ErrorKind, LaneId, Migrated, Result, Scope, Store,
    check_schema,
};
use sqlx::{
    ConnectOptions as _, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::OnceCell;

pub use self::lane::PgLane;
use self::{clean::Cursor, database::Database, partition::Upkeep};
use crate::{
    config::PgConfig,
    migrate,
    sql::{Schema, SchemaStatements, Statements, TextMode},
    url,
};

/// The queue in a PostgreSQL database: [`Store`], dead letters and inspection. Cheap to clone.
#[derive(Clone)]
pub struct PgQueue(Arc<Queue>);

/// What the queue and its lanes share.
pub(crate) struct Queue {
    database: Database,
    schema: Schema,
    config: PgConfig,
    schema_statements: SchemaStatements,
    /// Made once the database's encoding is known.
    statements: OnceCell<Arc<Statements>>,
    cleaned_to: Cursor,
    upkeep: Upkeep,
}

impl PgQueue {
    /// A queue with a pool of its own. Connects when it is first used: `check` tells whether that
    /// works.
    ///
    /// # Errors
    /// `Configuration` when a setting can't be used.
    #[expect(
        clippy::unused_async,
        reason = "callers need not change when connecting early becomes worth while"
    )]
    pub async fn connect(config: PgConfig) -> Result<Self> {
        config.validate()?;
        let options = session(url::parse(&config.url)?, &config);
        let pool = PgPoolOptions::new()
            .max_connections(config.pool_size)
            .acquire_timeout(config.connect_timeout)
            // A round trip before each statement would only tell of a broken connection what the
            // statement tells as well, and the relay repeats its calls.
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Self::with_pool(pool, config)
    }

    /// A queue on the caller's pool; `url`, `pool_size` and `connect_timeout` are not used, and time
    /// limits of sessions are the caller's business.
    ///
    /// # Errors
    /// `Configuration` when a setting can't be used.
    pub fn with_pool(pool: PgPool, config: PgConfig) -> Result<Self> {
        config.validate_bounds()?;
        let schema = Schema::new(&config.schema)?;
        Ok(Self(Arc::new(Queue {
            database: Database::new(pool, config.statement_timeout),
            schema_statements: SchemaStatements::new(&schema),
            schema,
            config,
            statements: OnceCell::new(),
            cleaned_to: Cursor::default(),
            upkeep: Upkeep::default(),
        })))
    }
}

/// How often a migration is tried that finds a table locked; each try waits 2 s for it, and writers
/// get through in between.
const MIGRATE_ATTEMPTS: u32 = 30;
const MIGRATE_PAUSE: Duration = Duration::from_secs(1);

/// Settings of every session of ours.
fn session(options: PgConnectOptions, config: &PgConfig) -> PgConnectOptions {
    let limit_ms = config.statement_timeout.as_millis().max(1).to_string();
    options
        .application_name("outbox")
        .options([
            ("statement_timeout", limit_ms.as_str()),
            ("idle_in_transaction_session_timeout", limit_ms.as_str()),
            // Serializable defaults of a database would make claims fail against each other.
            ("default_transaction_isolation", "read committed"),
            // Compiling takes longer than any statement of ours.
            ("jit", "off"),
            // Every statement of ours has its index. A backlog that came since the last ANALYZE
            // would otherwise be read and sorted as a whole by each claim.
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
        ])
        // Ours tells of failures by errors; the driver's log would repeat every statement.
        .disable_statement_logging()
}

impl Queue {
    /// Applies what is missing; tells whether a table was locked for too long.
    async fn migrate_once(&self, locked: &AtomicBool) -> Result<Migrated> {
        const OPERATION: &str = "migrate";
        const LOCK_NOT_AVAILABLE: &str = "55P03";
        let fail = |error: sqlx::Error| {
            let code = error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::code);
            locked.store(
                code.as_deref() == Some(LOCK_NOT_AVAILABLE),
                Ordering::Relaxed,
            );
            self.database.fail(OPERATION, &error)
        };
        let mut connection = self.database.for_transaction(OPERATION).await?;
        let mut transaction = connection.begin().await.map_err(fail)?;
        let mut migrated = migrate::apply(&mut transaction, &self.schema, fail).await?;
        if let Some(made) = self.config.partitions.and_then(convert::made)
            && convert::convert(&mut transaction, &self.schema, migrated.from == 0, fail).await?
        {
            migrated.also = Some(made);
        }
        transaction.commit().await.map_err(fail)?;
        connection.give_back();
        Ok(migrated)
    }

    async fn statements(&self) -> Result<&Arc<Statements>> {
        self.statements
            .get_or_try_init(|| async {
                let query = sqlx::query(self.schema_statements.encoding.text());
                let row = self.database.row("read the encoding", query).await?;
                let encoding: &str = row
                    .try_get(0)
                    .map_err(|error| self.database.fail("read the encoding", &error))?;
                let mode = match encoding {
                    "SQL_ASCII" => TextMode::Raw,
                    _ => TextMode::Text,
                };
                Ok(Arc::new(Statements::new(
                    &self.schema,
                    self.config.done,
                    mode,
                )))
            })
            .await
    }
}

#[async_trait]
impl Store for PgQueue {
    fn name(&self) -> &'static str {
        "postgres-queue"
    }

    fn ordered(&self) -> bool {
        false
    }

    async fn migrate(&self) -> Result<Migrated> {
        let mut attempt = 1;
        loop {
            let locked = AtomicBool::new(false);
            let ended = self.0.migrate_once(&locked).await;
            if !locked.into_inner() {
                let migrated = ended?;
                // Before the first insert, which would go into the default partition.
                self.0.keep_partitions(Duration::MAX).await?;
                return Ok(migrated);
            }
            if attempt == MIGRATE_ATTEMPTS {
                let blocked_by =
                    "a transaction that has held the table all the time: end it and migrate again";
                return ended.map_err(|error| error.context("blocked_by", blocked_by));
            }
            tokio::time::sleep(MIGRATE_PAUSE).await;
            attempt += 1;
        }
    }

    async fn check(&self) -> Result<()> {
        const OPERATION: &str = "check";
        let queue = &self.0;
        let query = sqlx::query(queue.schema_statements.check.text())
            .bind(queue.config.done == DoneMode::Keep);
        let row = queue.database.row(OPERATION, query).await?;
        let wrong = |error: sqlx::Error| queue.database.fail(OPERATION, &error);
        let standby: bool = row.try_get("standby").map_err(wrong)?;
        let version: i32 = row.try_get("version").map_err(wrong)?;
        let permitted: bool = row.try_get("permitted").map_err(wrong)?;
        let refuse = |kind, what| Err(Error::new(kind, OPERATION, what).scope(Scope::Destination));
        if standby {
            return refuse(ErrorKind::ReadOnly, "the server is a standby");
        }
        check_schema(OPERATION, version, migrate::VERSION)?;
        if !permitted {
            return refuse(
                ErrorKind::Unauthorized,
                "the role needs SELECT, UPDATE and, to delete, DELETE on the table queue",
            );
        }
        Ok(())
    }

    async fn check_settings(&self) -> Result<()> {
        self.0.check_partitions().await
    }

    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired> {
        let statements = self.0.statements().await?;
        let lanes = (0..self.0.config.workers)
            .map(|number| LaneId(format!("{}/{number}", request.worker)))
            .filter(|id| !request.held.contains(id))
            .map(|id| {
                PgLane::new(
                    id,
                    Arc::clone(&self.0),
                    Arc::clone(statements),
                    request.topics,
                )
            })
            .map(|lane| Arc::new(lane) as _)
            .collect();
        Ok(Acquired {
            lanes,
            surrender: Vec::new(),
        })
    }
}

impl fmt::Debug for PgQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgQueue")
            .field("database", &self.0.database)
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}
