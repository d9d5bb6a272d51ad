//! Relays that remove delivered rows while others write, claim and die: nobody waits, nothing
//! deadlocks, and nothing but delivered rows goes.

use std::{fs, time::Duration};

use outbox_core::Enqueue as _;
use outbox_postgres::PgOutbox;
use outbox_testkit::servers::Postgres;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::support::{Place, copies, numbered, scaled, until};

/// Rows that must stay: half of them dead, half of them due in a year.
const STAYING: usize = 1_000;
const STAYING_ROWS: &str = "topic = 'old' AND status <> 'done'";
const WRITERS: usize = 4;
/// How often each writer commits.
const TICK: Duration = Duration::from_millis(20);

/// Writes events at a steady rate until told to stop; gives how many. No insert may fail.
async fn write(pool: PgPool, topic: String, per_tick: usize, stop: CancellationToken) -> usize {
    let outbox = PgOutbox::new("outbox").unwrap();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut written = 0;
    while !stop.is_cancelled() {
        ticks.tick().await;
        let mut transaction = pool.begin().await.unwrap();
        let events = numbered(&topic, per_tick);
        outbox.enqueue_all(&mut transaction, &events).await.unwrap();
        transaction.commit().await.unwrap();
        written += per_tick;
    }
    written
}

/// Delivered rows with the ones that must stay among them, from the first to the last.
async fn fill(place: &Place, done: usize) {
    let every = done / STAYING;
    place
        .sql(&format!(
            "INSERT INTO outbox.queue
                 (topic, event_type, payload, status, dead_reason, created_at, processed_at, next_attempt_at)
             SELECT 'old', 'T', jsonb_build_object('number', n, 'filling', repeat('x', 100)),
                 CASE WHEN n % {every} <> 0 THEN 'done' WHEN n / {every} % 2 = 0 THEN 'failed' ELSE 'pending' END,
                 CASE WHEN n % {every} = 0 AND n / {every} % 2 = 0 THEN 'rejected' END,
                 now() - interval '1 hour',
                 CASE WHEN n % {every} <> 0 OR n / {every} % 2 = 0 THEN now() - interval '1 hour' END,
                 now() + interval '1 year'
             FROM generate_series(1, {done}) AS n"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_lock() {
    let done = scaled(100_000, 10_000_000);
    let per_tick = scaled(5, 10);
    let sent_min = scaled(3_000, 100_000);
    let postgres = Postgres::start_with(&[
        ("log_min_duration_statement", "1000"),
        ("log_line_prefix", "%a> "),
        ("max_wal_size", "4GB"),
    ])
    .unwrap();
    let redis = std::env::var("OUTBOX_TEST_REDIS_URL").expect("OUTBOX_TEST_REDIS_URL is set");
    let place = Place::on(&postgres.url(), &redis).await;
    let topic = place.topic("t");
    fill(&place, done).await;
    let staying = format!(
        "SELECT md5(string_agg(q::text, '' ORDER BY id)) FROM outbox.queue AS q WHERE {STAYING_ROWS}"
    );
    let before = place.text(&staying).await;
    let log_begins = fs::read_to_string(postgres.log()).unwrap().len();

    let writers_pool = PgPoolOptions::new()
        .max_connections(u32::try_from(WRITERS).unwrap())
        .connect(&format!("{}?application_name=writer", place.url()))
        .await
        .unwrap();
    let stop = CancellationToken::new();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        writers.spawn(write(
            writers_pool.clone(),
            topic.clone(),
            per_tick,
            stop.clone(),
        ));
    }
    let settings = place
        .relay()
        .set("store.retention", "0s")
        .set("store.statement_timeout", "5s")
        .set("store.lease", "2s")
        .set("relay.clean_interval", "50ms");
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(settings.started().await);
    }
    let left = async || usize::try_from(place.count("topic = 'old'").await).unwrap();
    until("a third cleaned", async || left().await < done * 2 / 3).await;
    relays.remove(0).kill();
    let at_the_kill = left().await;
    assert!(at_the_kill > STAYING, "killed at work: {at_the_kill}");
    until("all old ones cleaned", async || left().await == STAYING).await;
    until(
        "cleaning, writing and publishing side by side",
        async || place.length(&topic).await >= sent_min,
    )
    .await;
    stop.cancel();
    let written: usize = writers.join_all().await.into_iter().sum();

    // What the killed one had in flight, and the writers' own events, delivered and removed.
    let all = "SELECT count(*) FROM outbox.queue";
    let stays = i64::try_from(STAYING).unwrap();
    until("nothing but what must stay", async || {
        place.number(all).await == stays
    })
    .await;
    assert_eq!(place.text(&staying).await, before, "changed, or others");
    let sent = copies(&place.entries(&topic).await);
    let sent: usize = sent.values().sum();
    assert!(sent >= written, "{sent} of {written} were sent");
    let mut cleaned = 0.0;
    for relay in relays {
        cleaned += relay.metric("outbox_cleaned_events_total").await;
        let log = relay.stop().await;
        let failed = log
            .iter()
            .filter(|line| line.contains("can't be removed") || line.contains("store failed"));
        assert_eq!(failed.count(), 0, "{log:#?}");
    }
    assert!(cleaned > 0.0, "the others went on after the kill");
    let log = fs::read_to_string(postgres.log()).unwrap();
    let bad: Vec<_> = log[log_begins..]
        .lines()
        .filter(|line| line.starts_with("outbox>") || line.starts_with("writer>"))
        .filter(|line| {
            ["duration:", "deadlock", "statement timeout", "ERROR"]
                .iter()
                .any(|word| line.contains(word))
        })
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
}
