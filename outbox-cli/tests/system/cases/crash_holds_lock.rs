//! What a killed relay held is taken over when its lease ends, whatever was restarted meanwhile and
//! whatever the next relay is called.

use std::time::{Duration, Instant};

use outbox_testkit::{
    proxy::Direction,
    servers::{Postgres, Redis},
};

use crate::support::{Place, copies, numbered, proxy, until};

const EVENTS: usize = 100;
/// Of these, so many have one attempt left.
const LAST_ATTEMPT: usize = 10;
const LEASE: Duration = Duration::from_secs(2);
/// A poll, the halves of a crashed batch one after another, and a busy machine.
const SLACK: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_holds_lock() {
    let mut postgres = Postgres::start().unwrap();
    let redis = Redis::start().unwrap();
    let place = Place::on(&postgres.url(), &redis.url()).await;
    let topic = place.topic("t");
    let (broker, url) = proxy(place.redis_url()).await;
    let settings = place
        .relay()
        .set("store.lease", "2s")
        .set("relay.worker", "the-same-name")
        .set("relay.store_backoff_max", "200ms");
    let victim = settings
        .clone()
        .set("routes.default.publisher.url", url)
        .started()
        .await;
    broker.stall(Direction::ToServer);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("all events claimed", async || {
        place.count("status = 'processing'").await == 100
    })
    .await;
    // As if there had been one below the maximum of 10 before this claim counted its own.
    place
        .sql("UPDATE outbox.queue SET attempts = 10 WHERE id IN (SELECT id FROM outbox.queue ORDER BY id LIMIT 10)")
        .await;
    victim.kill();
    let killed = Instant::now();

    let next = settings.started().await;
    postgres.kill().unwrap();
    postgres.restart().unwrap();
    let last_attempt = "status = 'failed' AND dead_reason = 'attempts_exhausted' AND error <> '' AND attempts = 11";
    place
        .until_count("status = 'done'", EVENTS - LAST_ATTEMPT)
        .await;
    place.until_count(last_attempt, LAST_ATTEMPT).await;
    let took = killed.elapsed();
    assert!(took < LEASE + SLACK, "{took:?}");
    assert_eq!(place.count("status IN ('pending', 'processing')").await, 0);
    next.stop().await;
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), EVENTS - LAST_ATTEMPT);
    assert!(
        copies.values().all(|count| *count == 1),
        "nothing had landed before"
    );

    // The dead ones are visible, and an operator can put them back.
    let relay = settings.started().await;
    place.requeue_all().await;
    place.until_count("status = 'done'", EVENTS).await;
    relay.stop().await;
}
