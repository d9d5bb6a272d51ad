//! A database for each test, and the words that tests are written in.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use outbox_core::{
    AcquireRequest, Batch, ClaimLimit, Lane, LaneId, Position, Settlement, Store as _,
    TopicPattern, TopicSet, Verdict, WorkerId,
};
use outbox_postgres::{PgConfig, PgQueue};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};
use uuid::Uuid;

/// A database that exists for one test.
pub(crate) struct Db {
    pub(crate) pool: PgPool,
    pub(crate) url: String,
    pub(crate) name: String,
}

/// The server's URL, with another database in it.
pub(crate) fn server_url(database: Option<&str>) -> String {
    let url = std::env::var("OUTBOX_TEST_POSTGRES_URL")
        .expect("OUTBOX_TEST_POSTGRES_URL is not set; run `cargo xtask integration`");
    let Some(database) = database else { return url };
    let (head, query) = url
        .split_once('?')
        .map_or((url.as_str(), ""), |(h, q)| (h, q));
    let authority = head.find("://").map_or(0, |at| at + 3);
    let end = head[authority..]
        .find('/')
        .map_or(head.len(), |at| authority + at);
    format!("{}/{database}?{query}", &head[..end])
}

async fn administer(text: &str) {
    let mut admin = PgConnection::connect(&server_url(None))
        .await
        .expect("the server answers");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut admin)
        .await
        .unwrap_or_else(|e| panic!("{text}: {e}"));
}

/// Runs a test in a fresh database and drops it, also after a panic.
pub(crate) async fn with_database(body: impl AsyncFnOnce(&Db)) {
    with_encoding("UTF8", body).await;
}

/// The same with another encoding.
pub(crate) async fn with_encoding(encoding: &str, body: impl AsyncFnOnce(&Db)) {
    let db = Db::create(encoding).await;
    let result = AssertUnwindSafe(body(&db)).catch_unwind().await;
    db.destroy().await;
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

impl Db {
    /// A database of its own, empty.
    pub(crate) async fn create(encoding: &str) -> Self {
        let name = format!("outbox_{}", Uuid::new_v4().simple());
        administer(&format!(
            "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        ))
        .await;
        let url = server_url(Some(&name));
        let pool = PgPoolOptions::new()
            .max_connections(20)
            .connect(&url)
            .await
            .unwrap();
        Self { pool, url, name }
    }

    /// Drops it, whoever is connected.
    pub(crate) async fn destroy(&self) {
        self.pool.close().await;
        administer(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }

    pub(crate) fn config(&self) -> PgConfig {
        PgConfig::new(&self.url)
    }

    /// A migrated queue with the default settings.
    pub(crate) async fn queue(&self) -> PgQueue {
        self.queue_with(|_| ()).await
    }

    /// A migrated queue with other settings.
    pub(crate) async fn queue_with(&self, change: impl FnOnce(&mut PgConfig)) -> PgQueue {
        let mut config = self.config();
        change(&mut config);
        let queue = PgQueue::connect(config).await.unwrap();
        queue.migrate().await.unwrap();
        queue.check().await.unwrap();
        queue
    }

    pub(crate) async fn sql(&self, text: &str) {
        sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{text}: {e}"));
    }

    /// One number.
    pub(crate) async fn number(&self, text: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(text))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// One text.
    pub(crate) async fn text(&self, text: &str) -> Option<String> {
        sqlx::query_scalar(AssertSqlSafe(text))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// Rows as a plain SQL user writes them.
    pub(crate) async fn fill(&self, count: i64) {
        self.sql(&format!(
            "INSERT INTO outbox.queue (topic, event_type, aggregate_type, aggregate_id, payload)
             SELECT 'orders', 'OrderPlaced', 'order', n::text, jsonb_build_object('n', n) FROM generate_series(1, {count}) n"
        ))
        .await;
    }

    /// How many rows have this status.
    pub(crate) async fn count(&self, status: &str) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM outbox.queue WHERE status = '{status}'"
        ))
        .await
    }
}

/// The lanes that a worker gets.
pub(crate) async fn lanes(
    queue: &PgQueue,
    worker: &str,
    topics: &TopicSet,
    held: &[LaneId],
) -> Vec<Arc<dyn Lane>> {
    let request = AcquireRequest {
        route: "all",
        topics,
        worker: &WorkerId(worker.to_owned()),
        held,
    };
    queue.acquire(&request).await.unwrap().lanes
}

/// One lane for every topic.
pub(crate) async fn lane(queue: &PgQueue, worker: &str) -> Arc<dyn Lane> {
    lanes(queue, worker, &TopicSet::all(), &[])
        .await
        .swap_remove(0)
}

/// One lane for these topic patterns.
pub(crate) async fn lane_of(queue: &PgQueue, worker: &str, patterns: &[&str]) -> Arc<dyn Lane> {
    let patterns = patterns.iter().map(|p| p.parse::<TopicPattern>().unwrap());
    lanes(queue, worker, &TopicSet::new(patterns).unwrap(), &[])
        .await
        .swap_remove(0)
}

pub(crate) const fn limit(events: usize) -> ClaimLimit {
    ClaimLimit {
        events,
        bytes: 4 << 20,
    }
}

/// Positions of everything in a batch.
pub(crate) fn positions(batch: &Batch) -> Vec<Position> {
    let unreadable = batch.unreadable.iter().map(|row| row.position);
    batch
        .events
        .iter()
        .map(|event| event.position)
        .chain(unreadable)
        .collect()
}

/// The same verdict for everything in a batch.
pub(crate) fn all(batch: &Batch, verdict: &Verdict) -> Vec<Settlement> {
    positions(batch)
        .into_iter()
        .map(|position| Settlement {
            position,
            verdict: verdict.clone(),
        })
        .collect()
}

pub(crate) async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}
