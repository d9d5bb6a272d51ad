//! Wrong wall clocks of relays, producers and the database, also such that are stepped: only the
//! database's clock decides, and what waits in a relay waits by its monotonic clock (I12).

use std::time::Duration;

use outbox_testkit::{
    proxy::Direction,
    servers::{FakeClock, Postgres},
};
use rustix::process::Signal;
use time::{Duration as Ahead, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::support::{Place, Running, Settings, copies, numbered, proxy, scaled, until};

const HOUR: Ahead = Ahead::HOUR;
/// Retries come after exactly so long.
const BACKOFF: &str = "2s";
/// A poll, slow calls to the broker and a busy machine.
const SLACK_S: f64 = 12.0;

fn settings(place: &Place, broker: &str) -> Settings {
    place
        .relay()
        .set("routes.default.publisher.url", broker)
        .set("routes.default.breaker.base", BACKOFF)
        .set("routes.default.breaker.cap", BACKOFF)
        .set("relay.batch_events_max", "50")
        .set("relay.inspect_interval", "1s")
        .set("store.lease", "1s")
}

/// How far the clock of this process is ahead of ours by its last log line, which was just written.
fn ahead(log: &[String]) -> Ahead {
    let line = log.last().expect("a log line");
    let stamp = line.split(' ').next().unwrap();
    OffsetDateTime::parse(stamp, &Rfc3339).unwrap_or_else(|error| panic!("{line}: {error}"))
        - OffsetDateTime::now_utc()
}

#[track_caller]
fn assert_ahead(log: &[String], expected: Ahead) {
    let off = ahead(log) - expected;
    assert!(off.abs() < Ahead::seconds(30), "{off} from {expected}");
}

/// No age is below zero, neither in `status` nor in the metrics.
async fn assert_ages(place: &Place, relays: &[&Running]) {
    let text = place.relay().run(&["status", "--json"]);
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let age = |value: &serde_json::Value| value.as_f64().unwrap();
    // A clamp that is missing shows as an age without end as well.
    let sane = 0.0..200_000.0;
    assert!(
        sane.contains(&age(&state["oldest_pending_seconds"])),
        "{text}"
    );
    for lane in state["lanes"].as_array().unwrap() {
        assert!(sane.contains(&age(&lane["lease_left_seconds"])), "{text}");
    }
    for relay in relays {
        let text = relay.get("/metrics").await;
        for line in text.lines().filter(|line| line.contains("_seconds")) {
            let value = line.rsplit(' ').next().unwrap();
            let is_negative = value.parse::<f64>().is_ok_and(|value| value < 0.0);
            assert!(!is_negative, "{line}");
        }
    }
}

/// Whether all rows were done when the database's clock said so: not before they were due, and not
/// long after.
async fn assert_on_time(place: &Place) {
    let early = "processed_at < next_attempt_at";
    assert_eq!(place.count(early).await, 0, "before its time");
    let late = format!("processed_at > next_attempt_at + {SLACK_S} * interval '1 second'");
    assert_eq!(place.count(&late).await, 0, "delayed");
}

/// Events that are due at once, later, and, for a topic that fails at first, after a retry; through
/// calls to the broker that take longer than a lease.
async fn skewed(places: [Ahead; 2], steps: &[Ahead]) {
    const EVENTS: usize = 200;
    const DELAYED: usize = 5;
    let place = Place::shared().await;
    let (topic, taken) = (place.topic("t"), place.topic("taken"));
    let (broker, url) = proxy(place.redis_url()).await;
    let clocks = places.map(|ahead| FakeClock::ahead(ahead).unwrap());
    let mut relays = Vec::new();
    for (clock, ahead) in clocks.iter().zip(places) {
        let relay = settings(&place, &url).under(clock).started().await;
        assert_ahead(&relay.log(), ahead);
        relays.push(relay);
    }
    let mut redis = place.redis().await;
    let mut set = redis::cmd("SET");
    set.arg(&taken).arg("a string");
    set.exec_async(&mut redis).await.unwrap();
    broker.latency(Duration::from_millis(600));

    let producer = FakeClock::ahead(Ahead::minutes(10)).unwrap();
    let writer = place.relay().under(&producer);
    let write = |topic: &str, more: &[&str]| {
        let fixed = [
            "enqueue",
            "--topic",
            topic,
            "--type",
            "Written",
            "--payload",
            "{}",
        ];
        writer.run(&[&fixed, more].concat())
    };
    for _ in 0..DELAYED {
        write(&topic, &["--deliver-after", "4s"]);
        write(&topic, &[]);
        write(&taken, &[]);
    }
    place.enqueue(&numbered(&topic, EVENTS)).await;
    for step in steps {
        place
            .until_count("error_kind = 'wrong_topic_type'", DELAYED)
            .await;
        assert_ages(&place, &relays.iter().collect::<Vec<_>>()).await;
        for clock in &clocks {
            clock.step_to(*step).unwrap();
        }
        let id = write(&topic, &[]);
        let done = format!("event_id = '{}' AND status = 'done'", id.trim());
        place.until_count(&done, 1).await;
    }
    place
        .until_count("error_kind = 'wrong_topic_type'", DELAYED)
        .await;
    let mut delete = redis::cmd("DEL");
    delete.arg(&taken).exec_async(&mut redis).await.unwrap();
    let all = EVENTS + 3 * DELAYED + steps.len();
    place.until_count("status = 'done'", all).await;
    assert_on_time(&place).await;
    assert_ages(&place, &relays.iter().collect::<Vec<_>>()).await;
    // Nobody stole: each was claimed once and is there once.
    assert_eq!(place.count("attempts <> 1 OR crashes <> 0").await, 0);
    for (topic, count) in [(&topic, all - DELAYED), (&taken, DELAYED)] {
        let copies = copies(&place.entries(topic).await);
        assert_eq!(copies.len(), count);
        assert!(copies.values().all(|copies| *copies == 1));
    }
    broker.pass();
    for (relay, ahead) in relays.into_iter().zip(places) {
        assert_ahead(&relay.stop().await, steps.last().copied().unwrap_or(ahead));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_skew_of_relays_and_producer() {
    skewed([HOUR, -HOUR], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_skew_by_steps_of_the_relays() {
    skewed([Ahead::ZERO, Ahead::ZERO], &[-HOUR, HOUR]).await;
}

/// Forward, leases end early: copies, and no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_skew_by_a_step_forward_of_the_database() {
    const EVENTS: usize = 200;
    let clock = FakeClock::ahead(Ahead::ZERO).unwrap();
    let postgres = Postgres::start_under(&clock).unwrap();
    let place = Place::shared_with_postgres(&postgres.url()).await;
    let topic = place.topic("t");
    let (broker, url) = proxy(place.redis_url()).await;
    let relay = settings(&place, &url)
        .set("store.lease", "5s")
        .started()
        .await;
    broker.stall(Direction::ToServer);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("a batch in flight", async || {
        place.count("status = 'processing'").await > 0
    })
    .await;
    relay.signal(Signal::STOP);
    clock.step_to(HOUR).unwrap();
    // The expired leases of a relay that does not run.
    assert!(
        place
            .count("lease_until < clock_timestamp() - interval '30 minutes'")
            .await
            > 0
    );
    assert_ages(&place, &[]).await;
    relay.signal(Signal::CONT);
    broker.pass();
    place.until_count("status = 'done'", EVENTS).await;
    assert_ages(&place, &[&relay]).await;
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), EVENTS);
    relay.stop().await;
}

/// Back by X, what was written in the X before waits at most X, unless an operator brings it back;
/// what is written after, and what is in flight with a live relay, does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_skew_by_a_step_back_of_the_database() {
    // More than two relays take at once.
    const EVENTS: usize = 600;
    const NEW: usize = 60;
    let back = scaled(Ahead::seconds(8), Ahead::seconds(60));
    let clock = FakeClock::ahead(HOUR).unwrap();
    let postgres = Postgres::start_under(&clock).unwrap();
    let place = Place::shared_with_postgres(&postgres.url()).await;
    let (topic, new) = (place.topic("t"), place.topic("new"));
    let (broker, url) = proxy(place.redis_url()).await;
    let settings = settings(&place, &url);
    let relay = settings.clone().set("store.lease", "3s").started().await;
    let victim = settings.set("store.lease", "3s").started().await;
    broker.stall(Direction::ToServer);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("both relays with events in flight", async || {
        place
            .number("SELECT count(DISTINCT split_part(lease_owner, '/', 1)) FROM outbox.queue WHERE status = 'processing'")
            .await
            == 2
    })
    .await;
    victim.kill();

    clock.step_to(HOUR - back).unwrap();
    let stepped = std::time::Instant::now();
    broker.pass();
    place.enqueue(&numbered(&new, NEW)).await;
    let new_done = format!("topic = '{new}' AND status = 'done'");
    place.until_count(&new_done, NEW).await;
    let took = stepped.elapsed();
    assert!(took < back.unsigned_abs(), "new ones waited: {took:?}");
    assert_ages(&place, &[&relay]).await;
    assert!(place.count("status = 'done'").await > i64::try_from(NEW).unwrap());
    // The old ones lie ahead still, as scheduled ones; none is published before its stamp.
    assert!(
        place
            .count("status = 'pending' AND next_attempt_at > clock_timestamp()")
            .await
            > 0
    );
    place.until_count("status = 'done'", EVENTS + NEW).await;
    let bound = back.unsigned_abs() + Duration::from_secs(3) + Duration::from_secs_f64(SLACK_S);
    assert!(stepped.elapsed() < bound, "{:?}", stepped.elapsed());
    assert_eq!(copies(&place.entries(&topic).await).len(), EVENTS);

    // Back by an hour, with nobody who could wait for it: the statement that outbox-postgres/docs.md tells.
    clock.step_to(-HOUR).unwrap();
    let state = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let now = OffsetDateTime::now_utc().unix_timestamp();
    assert!(
        (place.number(state).await - now + 3600).abs() < 30,
        "it is stepped"
    );
    clock.step_to(HOUR).unwrap();
    relay.signal(Signal::STOP);
    place.enqueue(&numbered(&topic, NEW)).await;
    clock.step_to(-HOUR).unwrap();
    relay.signal(Signal::CONT);
    place.enqueue(&numbered(&new, NEW)).await;
    place.until_count(&new_done, 2 * NEW).await;
    assert_ages(&place, &[&relay]).await;
    let remedy = "UPDATE outbox.queue SET next_attempt_at = now()
        WHERE status = 'pending' AND created_at > now() AND next_attempt_at <= created_at";
    place.sql(remedy).await;
    place.until_count("status = 'done'", EVENTS + 3 * NEW).await;
    assert_ages(&place, &[&relay]).await;
    relay.stop().await;
}
