//! Orders by the thousand, relays that are killed, servers that are restarted: what was committed is
//! in the stream and what was rolled back is not.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::Event;
use outbox_testkit::{
    invariants::{History, KeyOrder, check},
    servers::{Postgres, Redis},
    workload::{Workload, WorkloadOptions},
};
use tokio::task::block_in_place;
use uuid::Uuid;

use crate::support::{Place, Settings, TransactionWatch, Written, until, write};

const ORDERS: usize = 20_000;
const WRITERS: usize = 16;
const TRANSACTION_MAX: Duration = Duration::from_secs(1);

/// What happens to the system, one after another, spread evenly over the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL, and started again at once.
    Relay,
    /// SIGKILL, then restarted.
    PostgresKilled,
    /// Stopped in good order, then restarted.
    PostgresStopped,
    RedisKilled,
    RedisStopped,
}

const FAULTS: [Fault; 13] = [
    Fault::Relay,
    Fault::PostgresStopped,
    Fault::RedisKilled,
    Fault::Relay,
    Fault::PostgresKilled,
    Fault::RedisStopped,
    Fault::Relay,
    Fault::RedisKilled,
    Fault::PostgresKilled,
    Fault::Relay,
    Fault::RedisStopped,
    Fault::PostgresStopped,
    Fault::Relay,
];

fn times(fault: Fault) -> usize {
    FAULTS.iter().filter(|other| **other == fault).count()
}

fn settings(place: &Place) -> Settings {
    place
        .relay()
        .set("store.lease", "3s")
        .set("relay.store_backoff_max", "500ms")
        .set("routes.default.breaker.cap", "500ms")
}

async fn run_faults(
    place: &Place,
    postgres: &mut Postgres,
    redis: &mut Redis,
    finished: &AtomicUsize,
) {
    let settings = settings(place);
    let mut victim = settings.started().await;
    let steady = settings.started().await;
    for (number, fault) in FAULTS.into_iter().enumerate() {
        let due = ORDERS * (number + 1) / (FAULTS.len() + 1);
        until("the writers' progress", async || {
            finished.load(Ordering::Relaxed) >= due
        })
        .await;
        block_in_place(|| match fault {
            Fault::Relay => Ok(()),
            Fault::PostgresKilled => postgres.kill().and_then(|()| postgres.restart()),
            Fault::PostgresStopped => postgres.restart(),
            Fault::RedisKilled => redis.kill().and_then(|()| redis.restart()),
            Fault::RedisStopped => redis.restart(),
        })
        .unwrap();
        if fault == Fault::Relay {
            victim.kill();
            victim = settings.start();
        }
    }
    until("the last writer", async || {
        finished.load(Ordering::Relaxed) == ORDERS
    })
    .await;
    until("an empty outbox", async || {
        place.count("status <> 'done'").await == 0
    })
    .await;
    victim.stop().await;
    steady.stop().await;
}

/// What the table says in the end: I2, I3 and I6.
async fn assert_settled(place: &Place, written: &Written, seen: &BTreeSet<Uuid>) {
    let leftovers = "status <> 'done' OR lease_owner IS NOT NULL OR lease_token IS NOT NULL
        OR lease_until IS NOT NULL OR processed_at IS NULL";
    assert_eq!(place.count(leftovers).await, 0, "nothing pending or stuck");
    let rows: Vec<Uuid> = sqlx::query_scalar("SELECT event_id FROM outbox.queue")
        .fetch_all(&place.pool)
        .await
        .unwrap();
    let orders: Vec<Uuid> = sqlx::query_scalar("SELECT event_id FROM orders")
        .fetch_all(&place.pool)
        .await
        .unwrap();
    let committed: BTreeSet<Uuid> = written.committed.iter().map(Event::id).collect();
    assert_eq!(rows.len(), committed.len(), "one row an event");
    for found in [rows, orders] {
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), committed);
    }
    assert!(committed.is_subset(seen), "done is what was acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn end_to_end_survives_kills_and_restarts() {
    let since = Instant::now();
    let mut postgres = Postgres::start().unwrap();
    let mut redis = Redis::start().unwrap();
    let place = Place::on(&postgres.url(), &redis.url()).await;
    place
        .sql("CREATE TABLE orders (event_id uuid PRIMARY KEY, number text NOT NULL)")
        .await;
    let topic = place.topic("orders");
    let mut plan: Vec<_> = Workload::new(WorkloadOptions {
        transactions: ORDERS,
        keys: 1000,
        topics: vec![topic.clone()],
        ..WorkloadOptions::default()
    })
    .collect();
    // Every second of the long ones: a writer waits about ten seconds of the run with one open.
    for transaction in plan.iter_mut().filter(|t| !t.hold.is_zero()).step_by(2) {
        transaction.hold = Duration::ZERO;
    }
    let held = plan.iter().filter(|t| !t.hold.is_zero()).count();
    let finished = Arc::new(AtomicUsize::new(0));
    let watch = TransactionWatch::start(place.url());
    let (written, ()) = tokio::join!(
        write(&place.pool, plan, WRITERS, Arc::clone(&finished)),
        run_faults(&place, &mut postgres, &mut redis, &finished),
    );

    let entries = place.entries(&topic).await;
    let history = History {
        committed: written.committed.clone(),
        rolled_back: written.rolled_back.clone(),
        seen: entries.iter().map(|entry| entry.sighting(&topic)).collect(),
        ..History::default()
    };
    let report = check(&history, KeyOrder::Unordered).unwrap_or_else(|wrong| panic!("{wrong}"));
    let ids = history.seen.iter().map(|seen| seen.id).collect();
    assert_settled(&place, &written, &ids).await;
    let seen = watch.seen().await;
    assert!(seen.looks > 100, "{seen:?}");
    assert!(seen.oldest < TRANSACTION_MAX, "{seen:?} (I11)");

    let mut table = String::new();
    for (name, value) in [
        ("orders written by 16 writers", ORDERS),
        ("committed, all in the stream", report.committed),
        ("rolled back, none in the stream", report.rolled_back),
        ("copies, equal to the first", report.duplicates),
        ("transactions open for seconds", held),
        ("transactions begun again", written.begun_again),
        ("commits resolved by reading", written.ambiguous),
        ("relays killed", times(Fault::Relay)),
        ("PostgreSQL killed", times(Fault::PostgresKilled)),
        ("PostgreSQL restarted", times(Fault::PostgresStopped)),
        ("Redis killed", times(Fault::RedisKilled)),
        ("Redis restarted", times(Fault::RedisStopped)),
    ] {
        let _ = writeln!(table, "  {name:<34}{value:>8}");
    }
    let oldest_ms = seen.oldest.as_millis();
    let _ = writeln!(
        table,
        "  {:<34}{oldest_ms:>5} ms",
        "oldest transaction of a relay"
    );
    let _ = writeln!(
        table,
        "  {:<34}{:>6} s",
        "duration",
        since.elapsed().as_secs()
    );
    // Past the test harness, which shows only what failed.
    let _ = std::io::stderr().write_all(format!("end to end:\n{table}").as_bytes());
    assert_eq!(report.committed + report.rolled_back, ORDERS);
}
