//! Calls that are cancelled at any moment, behind a slow network: no session stays in a transaction,
//! and what was answered is committed.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    DeadFilter, DeadLetters as _, Enqueue as _, Event, Inspect as _, Lane, Page, Verdict,
};
use outbox_postgres::{PgConfig, PgOutbox, PgQueue};
use outbox_testkit::{eventually, proxy::FaultProxy};
use sqlx::{ConnectOptions as _, PgPool, postgres::PgConnectOptions, postgres::PgPoolOptions};
use tokio::{task::JoinHandle, time::Instant};
use uuid::Uuid;

use crate::support::{Db, all, lane, limit, with_database};

/// Each way, so a round trip takes twice as long; calls of up to three fit into the limits then, and
/// each of their moments is hit.
const LATENCY: Duration = Duration::from_millis(50);
/// How long a session may idle in a transaction: many round trips of a call in progress.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Above what any call takes that is not cancelled, a new connection included.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long calls are cancelled: 5 min with `OUTBOX_SOAK=1`.
fn duration() -> Duration {
    let soak = std::env::var_os("OUTBOX_SOAK").is_some_and(|value| value == "1");
    Duration::from_secs(if soak { 300 } else { 10 })
}

/// The database behind a slow network.
async fn slow(db: &Db) -> (FaultProxy, String) {
    let options: PgConnectOptions = db.url.parse().unwrap();
    let direct = format!("{}:{}", options.get_host(), options.get_port());
    let target = tokio::net::lookup_host(&direct)
        .await
        .unwrap()
        .next()
        .unwrap();
    let proxy = FaultProxy::start(target).await.unwrap();
    proxy.latency(LATENCY);
    let url = db.url.replace(&direct, &proxy.address().to_string());
    (proxy, url)
}

/// Runs the call as a task, and aborts it after this time.
async fn cut<T: Send + 'static>(
    after: Duration,
    call: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let task = tokio::spawn(call);
    let abort = task.abort_handle();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(after).await;
        abort.abort();
    });
    let ended = task.await;
    timer.abort();
    match ended {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert!(error.is_cancelled(), "{error}");
            None
        }
    }
}

/// Times from 50 to 300 ms, every one in its turn; each third call has time enough, since a pool
/// whose connections are closed needs some to connect anew.
fn limit_of(call: u64) -> Duration {
    if call.is_multiple_of(3) {
        PATIENCE
    } else {
        Duration::from_millis(50 + call * 37 % 251)
    }
}

async fn is_there(db: &Db, ids: &[Uuid]) -> bool {
    let there: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox.queue WHERE event_id = ANY ($1)")
            .bind(ids)
            .fetch_one(&db.pool)
            .await
            .unwrap();
    there == i64::try_from(ids.len()).unwrap()
}

fn events(count: u64) -> Vec<Event> {
    let event = |number: u64| {
        let event = Event::new("orders", "Placed").key(number.to_string());
        event.json(&number).unwrap()
    };
    (0..count).map(event).collect()
}

/// Looks at the sessions from a connection that the faults do not touch, until aborted; panics when
/// one idles in a transaction.
fn watch(pool: &PgPool) -> JoinHandle<()> {
    let pool = pool.clone();
    tokio::spawn(async move {
        loop {
            let idle: f64 = sqlx::query_scalar(
                "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8
                 FROM pg_stat_activity
                 WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
            )
            .fetch_one(&pool)
            .await
            .unwrap();
            let idle = Duration::from_secs_f64(idle.max(0.0));
            assert!(
                idle <= IDLE_MAX,
                "a session has idled in a transaction for {idle:?}"
            );
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    })
}

async fn unwatch(watcher: JoinHandle<()>) {
    watcher.abort();
    if let Err(error) = watcher.await {
        assert!(error.is_cancelled(), "{error}");
    }
}

/// Calls of every kind, and how many were answered and cancelled.
struct Calls<'a> {
    db: &'a Db,
    queue: PgQueue,
    lane: Arc<dyn Lane>,
    made: u64,
    answered: u32,
    cancelled: u32,
}

impl Calls<'_> {
    async fn cut<T: Send + 'static>(
        &mut self,
        call: impl Future<Output = outbox_core::Result<T>> + Send + 'static,
    ) -> Option<T> {
        self.cut_after(limit_of(self.made), call).await
    }

    async fn cut_after<T: Send + 'static>(
        &mut self,
        time: Duration,
        call: impl Future<Output = outbox_core::Result<T>> + Send + 'static,
    ) -> Option<T> {
        self.made += 1;
        let answer = cut(time, call).await;
        if answer.is_some() {
            self.answered += 1;
        } else {
            self.cancelled += 1;
        }
        answer.map(|answer| answer.unwrap_or_else(|error| panic!("call {}: {error}", self.made)))
    }

    async fn enqueue(&mut self, time: Duration) {
        let events = events(1 + self.made % 3);
        let ids: Vec<Uuid> = events.iter().map(Event::id).collect();
        let queue = self.queue.clone();
        let call = async move { queue.enqueue(&events).await };
        if self.cut_after(time, call).await.is_some() {
            assert!(
                is_there(self.db, &ids).await,
                "call {}: answered, not committed",
                self.made
            );
        }
    }

    /// A claim, a renewal and a settlement, each cut at a time of its own.
    async fn work(&mut self, time: Duration) {
        let lane = Arc::clone(&self.lane);
        let claim = async move { lane.claim(limit(3)).await };
        let Some(batch) = self.cut_after(time, claim).await else {
            return;
        };
        if batch.is_empty() {
            return;
        }
        let ids: Vec<i64> = batch.events.iter().map(|event| event.position.0).collect();
        self.assert_status("claimed", &ids).await;
        let (lane, token) = (Arc::clone(&self.lane), batch.token);
        let renew = async move { lane.renew(&[token]).await };
        self.cut(renew).await;
        let (lane, done) = (Arc::clone(&self.lane), all(&batch, &Verdict::Done));
        let settle = async move { lane.settle(token, &done).await };
        if let Some(settled) = self.cut(settle).await {
            assert_eq!((settled.applied, settled.lost), (ids.len() as u64, 0));
            self.assert_status("done", &ids).await;
        }
    }

    async fn look(&mut self) {
        let queue = self.queue.clone();
        let inspect = async move { queue.inspect(100).await };
        self.cut(inspect).await;
        let queue = self.queue.clone();
        let dead = async move {
            let page = Page {
                after: None,
                limit: 10,
            };
            queue.list(&DeadFilter::default(), page).await?;
            queue.requeue(&DeadFilter::default(), 10).await
        };
        self.cut(dead).await;
    }

    async fn assert_status(&self, what: &str, ids: &[i64]) {
        let condition = match what {
            "done" => "status = 'done'",
            _ => "lease_token IS NOT NULL",
        };
        let text = format!("SELECT count(*) FROM outbox.queue WHERE {condition} AND id = ANY ($1)");
        let fitting: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(text))
            .bind(ids)
            .fetch_one(&self.db.pool)
            .await
            .unwrap();
        assert_eq!(
            fitting,
            i64::try_from(ids.len()).unwrap(),
            "call {}: {what} is answered, not committed",
            self.made
        );
    }
}

/// With one connection each call meets what the last one left; with two they change about.
async fn cancelled_calls(pool_size: u32) {
    with_database(async |db| {
        db.queue().await;
        let (proxy, url) = slow(db).await;
        let mut config = PgConfig::new(url);
        config.pool_size = pool_size;
        let queue = PgQueue::connect(config).await.unwrap();
        let mut calls = Calls {
            db,
            lane: lane(&queue, "w").await,
            queue,
            made: 0,
            answered: 0,
            cancelled: 0,
        };
        let watcher = watch(&db.pool);
        let until = Instant::now() + duration();
        while Instant::now() < until && !watcher.is_finished() {
            calls.enqueue(limit_of(calls.made)).await;
            calls.work(limit_of(calls.made)).await;
            calls.look().await;
            // An aborted BEGIN, on a connection at hand and on one that comes back from a call, and a
            // statement that begins no transaction on what it left.
            for ways in [1.5, 3.5] {
                calls.enqueue(LATENCY.mul_f64(ways)).await;
                calls.work(PATIENCE).await;
            }
        }
        unwatch(watcher).await;
        assert!(
            calls.cancelled > 10 && calls.answered > 10,
            "{} cancelled, {} answered",
            calls.cancelled,
            calls.answered
        );
        proxy.pass();
        calls.enqueue(PATIENCE).await;
        calls.work(PATIENCE).await;
        calls.look().await;
        let free = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
             AND application_name = 'outbox' AND xact_start IS NOT NULL";
        let rested = eventually(PATIENCE, async || {
            (db.number(free).await == 0).then_some(())
        });
        assert!(rested.await.is_some(), "a session stays in a transaction");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_begin_of_the_store_on_one_connection() {
    cancelled_calls(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_begin_of_the_store_on_two_connections() {
    cancelled_calls(2).await;
}

/// A caller's transaction that is dropped while an event is written rolls back, and the next one on
/// its connection is clean.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_begin_of_a_caller_rolls_back_whole() {
    with_database(async |db| {
        db.queue().await;
        let (_proxy, url) = slow(db).await;
        let options: PgConnectOptions = url.parse().unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(options.disable_statement_logging())
            .await
            .unwrap();
        let outbox = PgOutbox::new("outbox").unwrap();
        let watcher = watch(&db.pool);
        let (mut cancelled, mut committed) = (0, Vec::new());
        for round in 0..24 {
            let events = events(2);
            let ids: Vec<Uuid> = events.iter().map(Event::id).collect();
            let (pool, outbox) = (pool.clone(), outbox.clone());
            let mut transaction = pool.begin().await.unwrap();
            let write = async move {
                for event in &events {
                    outbox.enqueue(&mut transaction, event).await.unwrap();
                }
                transaction
            };
            if let Some(transaction) = cut(limit_of(round), write).await {
                transaction.commit().await.unwrap();
                assert!(is_there(db, &ids).await, "round {round}: not committed");
                committed.extend(ids);
            } else {
                cancelled += 1;
            }
        }
        unwatch(watcher).await;
        assert!(
            cancelled > 5 && committed.len() > 5,
            "{cancelled} cancelled"
        );
        let rows = db.number("SELECT count(*) FROM outbox.queue").await;
        assert_eq!(rows, i64::try_from(committed.len()).unwrap(), "I1");
    })
    .await;
}
