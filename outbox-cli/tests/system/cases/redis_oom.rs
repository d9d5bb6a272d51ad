//! A broker without memory refuses for a while and loses nothing; one that evicts may lose streams,
//! and the relay says so when it starts.

use std::time::Duration;

use outbox_testkit::servers::Redis;

use crate::support::{Place, Running, command, copies, numbered, scaled, until};

const EVENTS: usize = 20_000;
/// How long the full server is watched.
const FULL: fn() -> Duration = || scaled(Duration::from_secs(6), Duration::from_secs(30));
const REFUSED: &str = "outbox_publish_failures_total";
const EVICTION: &str = "may evict whole streams";

async fn start(policy: &str) -> (Redis, Place) {
    let redis = Redis::start_with(&["--maxmemory", "5mb", "--maxmemory-policy", policy]).unwrap();
    let place = Place::shared_with_redis(&redis.url()).await;
    (redis, place)
}

async fn relay(place: &Place) -> Running {
    // One lane, so that batches do not overlap.
    let settings = place.relay().set("store.workers", "1");
    let settings = settings.set("routes.default.breaker.cap", "2s");
    settings.started().await
}

type Fields = Vec<(String, Vec<u8>)>;

/// Time and number of each entry, in the stream's order.
async fn numbers(redis: &Redis, topic: &str) -> Vec<(u64, usize)> {
    let entries: Vec<(String, Fields)> =
        command(&redis.url(), &format!("XRANGE {topic} - +")).await;
    let number = |(id, fields): (String, Fields)| {
        let at_ms = id.split('-').next().unwrap().parse().unwrap();
        let (_, key) = fields.iter().find(|(name, _)| name == "key").unwrap();
        let key = std::str::from_utf8(key).unwrap();
        (at_ms, key.trim_start_matches('k').parse().unwrap())
    };
    entries.into_iter().map(number).collect()
}

/// Fills the server until it refuses, watches the relay, makes room, and counts.
async fn refused_for_a_while(redis: &Redis, place: &Place) {
    let topic = place.topic("t");
    let mut relay = relay(place).await;
    assert!(!relay.logged(EVICTION), "{:#?}", relay.log());
    place.enqueue(&numbered(&topic, EVENTS)).await;
    relay.until_log("OOM").await;
    let refused = relay.metric(REFUSED).await;
    relay.assert_rests(FULL()).await;
    let refused = relay.metric(REFUSED).await - refused;
    // A probe may find room for itself and a batch none, so that each pause ends by a batch.
    let batches = 4.0 + FULL().as_secs_f64();
    assert!(
        refused > 0.0 && refused <= batches * 500.0,
        "{refused} refused"
    );
    assert!(relay.is_running());
    until("a paused route", async || {
        relay.metric("outbox_route_open").await > 0.0
    })
    .await;
    // A probe finds room now and then, so the two numbers are read in this order.
    let done = usize::try_from(place.count("status = 'done'").await).unwrap();
    let length = place.length(&topic).await;
    assert!(done <= length && length < EVENTS, "{done} {length} (I3)");
    assert_eq!(place.count("attempts > 1").await, 0, "no attempt is burnt");

    command::<()>(&redis.url(), "CONFIG SET maxmemory 0").await;
    place.until_count("status = 'done'", EVENTS).await;
    relay.stop().await;
    let burnt = "attempts <> 1 OR crashes <> 0 OR error IS NOT NULL";
    assert_eq!(place.count(burnt).await, 0, "no attempt is burnt");
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), EVENTS, "I2");
    assert!(
        copies.values().all(|count| *count == 1),
        "refused is no copy"
    );
    // One transaction's entries have one time: in each part of a batch order is kept.
    let numbers = numbers(redis, &topic).await;
    let together = numbers.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let (in_order, others): (Vec<_>, Vec<_>) = together.partition(|pair| pair[0].1 < pair[1].1);
    assert!(in_order.len() > EVENTS / 2, "{}", in_order.len());
    assert!(others.is_empty(), "{others:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_oom() {
    let (redis, place) = start("noeviction").await;
    refused_for_a_while(&redis, &place).await;
}

/// A second family of keys fills the server, with keys that may be evicted or not.
async fn second_family(redis: &Redis, expiry: &str) {
    let filling = "x".repeat(10_000);
    for key in 0..1_000 {
        command::<()>(&redis.url(), &format!("SET cache:{key} {filling}{expiry}")).await;
    }
}

/// What the warning is about: streams that nobody touches go first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_oom_allkeys_lru_evicts_streams() {
    let (redis, place) = start("allkeys-lru").await;
    let topic = place.topic("t");
    let relay = relay(&place).await;
    relay.until_log(EVICTION).await;
    place.enqueue(&numbered(&topic, 1_000)).await;
    place.until_count("status = 'done'", 1_000).await;
    // Which keys go is a matter of samples: the oldest go in the end, while new ones press.
    until("an evicted stream", async || {
        second_family(&redis, "").await;
        // Unlike XLEN it does not count as a use.
        command::<i64>(&redis.url(), &format!("EXISTS {topic}")).await == 0
    })
    .await;
    relay.stop().await;
}

/// Only keys with an expiry are evicted: the streams have none, are kept, and there is no warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_oom_volatile_lru_keeps_streams() {
    let (redis, place) = start("volatile-lru").await;
    second_family(&redis, " EX 3600").await;
    refused_for_a_while(&redis, &place).await;
    let left: usize = command(&redis.url(), "DBSIZE").await;
    assert_eq!(left, 1, "the second family went first");
}
