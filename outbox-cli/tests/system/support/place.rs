//! A database of its own for each test.

use std::sync::Arc;

use outbox_core::{DeadFilter, DeadLetters as _, Enqueue as _, Event, Store as _};
use outbox_postgres::{PgConfig, PgOutbox, PgQueue};
use outbox_testkit::eventually;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use uuid::Uuid;

use super::{
    patience,
    program::Settings,
    stream::{self, Entry},
};

/// Events in one statement at the most.
const EVENTS_PER_INSERT: usize = 1000;

/// A database with the schema and a Redis; both servers may be shared with other tests.
pub(crate) struct Place {
    name: String,
    server: String,
    redis: String,
    pub(crate) pool: PgPool,
}

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run the tests by `cargo xtask integration`"))
}

/// The server's URL with another database in it.
fn database_url(server: &str, database: &str) -> String {
    let (scheme, rest) = server.split_once("://").unwrap();
    let host = rest.split(['/', '?']).next().unwrap();
    format!("{scheme}://{host}/{database}")
}

async fn run(url: &str, statement: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(&mut connection)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
}

impl Place {
    /// On the servers that all tests share.
    pub(crate) async fn shared() -> Self {
        Self::on(
            &variable("OUTBOX_TEST_POSTGRES_URL"),
            &variable("OUTBOX_TEST_REDIS_URL"),
        )
        .await
    }

    /// On the PostgreSQL that all tests share, with this Redis.
    pub(crate) async fn shared_with_redis(redis: &str) -> Self {
        Self::on(&variable("OUTBOX_TEST_POSTGRES_URL"), redis).await
    }

    /// On this PostgreSQL, with the Redis that all tests share.
    pub(crate) async fn shared_with_postgres(postgres: &str) -> Self {
        Self::on(postgres, &variable("OUTBOX_TEST_REDIS_URL")).await
    }

    /// On these servers.
    pub(crate) async fn on(server: &str, redis: &str) -> Self {
        let name = format!("outbox_system_{}", Uuid::new_v4().simple());
        run(server, &format!("CREATE DATABASE {name}")).await;
        let options: PgConnectOptions = database_url(server, &name).parse().unwrap();
        let options = options.application_name("test").disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(20)
            .connect_lazy_with(options);
        let place = Self {
            name,
            server: server.to_owned(),
            redis: redis.to_owned(),
            pool,
        };
        place.queue(|_| ()).await.migrate().await.unwrap();
        place
    }

    pub(crate) fn database(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> String {
        database_url(&self.server, &self.name)
    }

    pub(crate) fn redis_url(&self) -> &str {
        &self.redis
    }

    /// A topic that no other test uses.
    pub(crate) fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// The store, as a relay inside the test uses it.
    pub(crate) async fn queue(&self, change: impl FnOnce(&mut PgConfig)) -> Arc<PgQueue> {
        Self::queue_at(&self.url(), change).await
    }

    /// The store of this URL, for a process that was handed the URL.
    pub(crate) async fn queue_at(url: &str, change: impl FnOnce(&mut PgConfig)) -> Arc<PgQueue> {
        let mut config = PgConfig::new(url);
        change(&mut config);
        Arc::new(PgQueue::connect(config).await.unwrap())
    }

    /// Settings of a relay process from this database to this Redis.
    pub(crate) fn relay(&self) -> Settings {
        Settings::relay()
            .set("store.url", self.url())
            .set("routes.default.publisher.url", &self.redis)
    }

    /// Writes the events in one transaction.
    pub(crate) async fn enqueue(&self, events: &[Event]) {
        let outbox = PgOutbox::new("outbox").unwrap();
        let mut transaction = self.pool.begin().await.unwrap();
        for part in events.chunks(EVENTS_PER_INSERT) {
            outbox.enqueue_all(&mut transaction, part).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }

    pub(crate) async fn sql(&self, statements: &str) {
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// The one number that the query gives.
    pub(crate) async fn number(&self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(query))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// The one text that the query gives.
    pub(crate) async fn text(&self, query: &str) -> Option<String> {
        sqlx::query_scalar(AssertSqlSafe(query))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// How many events fit the condition.
    pub(crate) async fn count(&self, condition: &str) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM outbox.queue WHERE {condition}"
        ))
        .await
    }

    /// Waits until so many events fit the condition.
    #[track_caller]
    pub(crate) fn until_count(&self, condition: &str, expected: usize) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let mut last = 0;
            let reached = eventually(patience(), async || {
                last = usize::try_from(self.count(condition).await).unwrap();
                (last == expected).then_some(())
            })
            .await;
            assert!(
                reached.is_some(),
                "{caller}: {last} events, not {expected}, with {condition}"
            );
        }
    }

    /// Puts all dead letters back; gives how many.
    pub(crate) async fn requeue_all(&self) -> u64 {
        let queue = self.queue(|_| ()).await;
        queue.requeue(&DeadFilter::default(), 1000).await.unwrap()
    }

    /// What a consumer finds in the stream, in its order.
    pub(crate) async fn entries(&self, topic: &str) -> Vec<Entry> {
        stream::read(&self.redis, topic).await
    }

    /// How many entries the stream has.
    pub(crate) async fn length(&self, topic: &str) -> usize {
        redis::cmd("XLEN")
            .arg(topic)
            .query_async(&mut self.redis().await)
            .await
            .unwrap()
    }

    /// A connection to the Redis.
    pub(crate) async fn redis(&self) -> redis::aio::MultiplexedConnection {
        stream::connect(&self.redis).await.unwrap()
    }

    async fn remove(server: String, redis: String, name: String) {
        // A private server may be gone already.
        if let Ok(mut connection) = stream::connect(&redis).await {
            let keys: redis::RedisResult<Vec<String>> = redis::cmd("KEYS")
                .arg(format!("{name}*"))
                .query_async(&mut connection)
                .await;
            for key in keys.unwrap_or_default() {
                let _ = redis::cmd("DEL").arg(key).exec_async(&mut connection).await;
            }
        }
        if let Ok(mut connection) = PgConnection::connect(&server).await {
            let statement = format!("DROP DATABASE {name} WITH (FORCE)");
            let _ = sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut connection)
                .await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let removal = Self::remove(self.server.clone(), self.redis.clone(), self.name.clone());
        // The test's own runtime can't wait inside of a drop.
        let removed = std::thread::spawn(|| outbox_testkit::block_on(removal)).join();
        if removed.is_err() {
            eprintln!("the database of the test is left behind");
        }
    }
}
