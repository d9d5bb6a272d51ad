//! A live relay keeps its leases however slow the broker is; a stopped one loses them, and what it
//! writes when it wakes changes nothing.

use std::time::Duration;

use outbox_testkit::proxy::Direction;
use rustix::process::Signal;

use crate::support::{Place, copies, numbered, proxy, scaled, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_expires_slow_publish() {
    const EVENTS: usize = 200;
    // Each way: a call takes twice as long, several leases.
    let latency = scaled(Duration::from_millis(1500), Duration::from_millis(2500));
    let place = Place::shared().await;
    let topic = place.topic("t");
    let (proxy, url) = proxy(place.redis_url()).await;
    let settings = place
        .relay()
        .set("routes.default.publisher.url", url)
        .set("relay.batch_events_max", "50")
        .set("store.lease", "1s");
    let relays = [settings.started().await, settings.started().await];
    proxy.latency(latency);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    place.until_count("status = 'done'", EVENTS).await;
    proxy.pass();
    for relay in relays {
        relay.stop().await;
    }
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), EVENTS);
    assert!(copies.values().all(|count| *count == 1), "nobody overtook");
    assert_eq!(place.count("attempts <> 1 OR crashes <> 0").await, 0);
}

/// I6: everything that the sleeper still had in hand was done by another one meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_expires_slow_publish_of_a_stopped_relay() {
    const EVENTS: usize = 300;
    let place = Place::shared().await;
    let topic = place.topic("t");
    let (proxy, url) = proxy(place.redis_url()).await;
    let settings = place
        .relay()
        .set("relay.batch_events_max", "50")
        .set("store.lease", "1s");
    let sleeper = settings
        .clone()
        .set("routes.default.publisher.url", url)
        .started()
        .await;
    proxy.stall(Direction::ToClient);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("events that landed without an answer", async || {
        !place.entries(&topic).await.is_empty()
    })
    .await;
    sleeper.signal(Signal::STOP);
    let in_flight = usize::try_from(place.count("status = 'processing'").await).unwrap();
    assert!(in_flight > 0);

    let other = settings.started().await;
    place.until_count("status = 'done'", EVENTS).await;
    let state = "SELECT md5(string_agg(q::text, '' ORDER BY id)) FROM outbox.queue q";
    let before = place.text(state).await;
    proxy.pass();
    sleeper.signal(Signal::CONT);
    until("a settle that came too late", async || {
        sleeper.metric("outbox_leases_lost_total").await > 0.0
    })
    .await;
    assert!(sleeper.logged("settled too late"), "{:?}", sleeper.log());
    sleeper.stop().await;
    assert_eq!(place.text(state).await, before, "0 rows changed");
    other.stop().await;

    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), EVENTS);
    let again = copies.values().sum::<usize>() - EVENTS;
    assert!(
        again <= in_flight,
        "{again} copies of {in_flight} in flight"
    );
}
