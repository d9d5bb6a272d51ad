//! The servers, and a database of the benchmark's own.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use outbox_core::Store;
use outbox_postgres::{DoneMode, PgConfig, PgQueue};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// Where the servers are.
pub(crate) struct Servers {
    pub(crate) postgres: String,
    pub(crate) redis: String,
    admin: String,
    database: String,
}

impl Servers {
    /// Makes a fresh database on the server of the environment.
    pub(crate) async fn prepare() -> Result<Self> {
        let admin = variable("OUTBOX_TEST_POSTGRES_URL")?;
        let redis = variable("OUTBOX_TEST_REDIS_URL")?;
        let database = format!("outbox_bench_{}", std::process::id());
        let mut conn = PgConnection::connect(&admin)
            .await
            .context("connect to PostgreSQL")?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}")))
            .execute(&mut conn)
            .await?;
        let (server, query) = admin
            .split_once('?')
            .map_or((admin.as_str(), ""), |(s, q)| (s, q));
        let (server, _) = server
            .rsplit_once('/')
            .context("the URL names no database")?;
        let question = if query.is_empty() { "" } else { "?" };
        let postgres = format!("{server}/{database}{question}{query}");
        Ok(Self {
            postgres,
            redis,
            admin,
            database,
        })
    }

    /// Drops the database and what the streams hold.
    pub(crate) async fn remove(self) -> Result<()> {
        self.flush_redis().await?;
        let mut conn = PgConnection::connect(&self.admin).await?;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        sqlx::raw_sql(AssertSqlSafe(drop))
            .execute(&mut conn)
            .await?;
        Ok(())
    }

    /// Each run starts with an empty Redis, so that none pays for its predecessor's memory.
    pub(crate) async fn flush_redis(&self) -> Result<()> {
        let mut conn = redis::Client::open(self.redis.as_str())?
            .get_multiplexed_async_connection()
            .await?;
        redis::cmd("FLUSHDB").exec_async(&mut conn).await?;
        Ok(())
    }

    /// A migrated store on the benchmark's database.
    pub(crate) async fn store(&self, done: DoneMode, workers: usize) -> Result<Arc<PgQueue>> {
        self.store_in("outbox", done, workers).await
    }

    /// The same in a schema of this name.
    pub(crate) async fn store_in(
        &self,
        schema: &str,
        done: DoneMode,
        workers: usize,
    ) -> Result<Arc<PgQueue>> {
        let mut config = PgConfig::new(&self.postgres);
        schema.clone_into(&mut config.schema);
        config.done = done;
        config.workers = workers;
        config.pool_size = connections(workers);
        config.connect_timeout = Duration::from_secs(10);
        let store = PgQueue::connect(config).await?;
        store.migrate().await?;
        Ok(Arc::new(store))
    }
}

/// A lane claims and settles at the same time.
pub(crate) fn connections(workers: usize) -> u32 {
    u32::try_from(workers * 2).unwrap_or(u32::MAX)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not set; run `cargo xtask bench` instead"))
}
