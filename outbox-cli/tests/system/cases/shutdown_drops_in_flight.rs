//! A relay that is told to stop finishes or gives back what it has, in time, whatever hangs.

use std::time::Duration;

use rustix::process::Signal;
use uuid::Uuid;

use crate::support::{Place, Running, copies, numbered, proxy, scaled, until};

const GRACE: &str = "2s";
/// Grace plus one second.
const END_MAX: Duration = Duration::from_secs(3);

/// Tells it to stop; it must end well and in time.
async fn stop(mut relay: Running) {
    relay.signal(Signal::TERM);
    let (code, took) = relay.ended().await;
    assert_eq!(code, Some(0), "{:#?}", relay.log());
    assert!(took <= END_MAX, "{took:?}: {:#?}", relay.log());
}

/// Nothing waits for the end of a lease, and every row that is done is in the stream.
async fn assert_given_back(place: &Place, topic: &str) {
    let held = "status = 'processing' OR lease_until IS NOT NULL OR next_attempt_at > now()";
    assert_eq!(place.count(held).await, 0);
    let done = usize::try_from(place.count("status = 'done'").await).unwrap();
    let sent = place.length(topic).await;
    assert!(done <= sent, "{done} done, {sent} in the stream (I3)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_drops_in_flight() {
    let rounds = scaled(10, 100);
    let events_per_round = scaled(1000, 5000);
    let place = Place::shared().await;
    let topic = place.topic("t");
    let settings = place.relay().set("relay.shutdown_grace", GRACE);
    for _ in 0..rounds {
        let relay = settings.start();
        place.enqueue(&numbered(&topic, events_per_round)).await;
        relay.until_log("relay started").await;
        let random_ms = Uuid::new_v4().as_u128() % 200;
        tokio::time::sleep(Duration::from_millis(u64::try_from(random_ms).unwrap())).await;
        stop(relay).await;
        assert_given_back(&place, &topic).await;
    }
    let relay = settings.started().await;
    let events = rounds * events_per_round;
    place.until_count("status = 'done'", events).await;
    stop(relay).await;
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), events);
    assert!(
        copies.values().all(|count| *count == 1),
        "a stop in good order makes no copies"
    );
}

/// The broker is gone (connections refused) or hangs (no answer to anything): what was in flight is
/// given back, and the next start sends all of it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_drops_in_flight_without_a_broker() {
    const EVENTS: usize = 200;
    for hangs in [true, false] {
        let place = Place::shared().await;
        let topic = place.topic("t");
        let (mut broker, url) = proxy(place.redis_url()).await;
        let settings = place
            .relay()
            .set("relay.shutdown_grace", GRACE)
            .set("routes.default.publisher.url", url);
        let relay = settings.started().await;
        if hangs {
            broker.black_hole();
        } else {
            broker.refuse().await;
        }
        place.enqueue(&numbered(&topic, EVENTS)).await;
        if hangs {
            until("events in flight", async || {
                place.count("status = 'processing'").await > 0
            })
            .await;
        } else {
            relay.until_log("destination failed").await;
        }
        stop(relay).await;
        assert_given_back(&place, &topic).await;
        assert_eq!(place.count("status = 'pending'").await, 200);
        assert_eq!(place.count("attempts > 0").await, 0, "no attempt is burnt");
        broker.pass();
        broker.accept().await.unwrap();
        let relay = settings.started().await;
        place.until_count("status = 'done'", EVENTS).await;
        stop(relay).await;
        assert_eq!(place.entries(&topic).await.len(), EVENTS);
    }
}

/// The second signal ends it at once; what was in flight comes back with the end of its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_drops_in_flight_at_the_second_signal() {
    const EVENTS: usize = 200;
    let place = Place::shared().await;
    let topic = place.topic("t");
    let (broker, url) = proxy(place.redis_url()).await;
    let settings = place
        .relay()
        .set("store.lease", "1s")
        .set("relay.shutdown_grace", "60s")
        .set("routes.default.publisher.url", url);
    let mut relay = settings.started().await;
    broker.black_hole();
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("events in flight", async || {
        place.count("status = 'processing'").await > 0
    })
    .await;
    relay.signal(Signal::TERM);
    relay.until_log("a second signal ends at once").await;
    assert!(relay.is_running(), "it waits for answers");
    relay.signal(Signal::TERM);
    let (code, took) = relay.ended().await;
    assert_eq!(code, Some(130), "{:#?}", relay.log());
    assert!(took < END_MAX, "{took:?}");
    broker.pass();
    let relay = settings.started().await;
    place.until_count("status = 'done'", EVENTS).await;
    relay.stop().await;
    assert_eq!(copies(&place.entries(&topic).await).len(), EVENTS);
}

/// The database hangs, so that claims wait for connections that never come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_drops_in_flight_while_waiting_for_a_connection() {
    const EVENTS: usize = 200;
    let place = Place::shared().await;
    let topic = place.topic("t");
    let (database, url) = proxy(&place.url()).await;
    let settings = place
        .relay()
        .set("relay.shutdown_grace", GRACE)
        .set("store.url", url)
        .set("store.connect_timeout", "30s");
    let relay = settings.started().await;
    database.black_hole();
    database.cut();
    let connections = database.connections();
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("new connections", async || {
        database.connections() > connections
    })
    .await;
    stop(relay).await;
    database.pass();
    database.cut();
    let relay = settings.started().await;
    place.until_count("status = 'done'", EVENTS).await;
    stop(relay).await;
    assert_given_back(&place, &topic).await;
    assert_eq!(place.entries(&topic).await.len(), EVENTS);
}
