//! What one relay is sending no other one takes, and age alone makes no row claimable.

use std::time::Duration;

use outbox_testkit::proxy::Direction;

use crate::support::{Place, copies, numbered, proxy, scaled};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poller_takes_in_flight() {
    let events = scaled(1000, 5000);
    let latency = scaled(Duration::from_millis(200), Duration::from_secs(2));
    let place = Place::shared().await;
    let topic = place.topic("t");
    let (one, one_url) = proxy(place.redis_url()).await;
    let (two, two_url) = proxy(place.redis_url()).await;
    let mut relays = Vec::new();
    for url in [one_url, two_url] {
        let settings = place
            .relay()
            .set("routes.default.publisher.url", url)
            .set("relay.batch_events_max", "50");
        relays.push(settings.started().await);
    }
    let before = [
        one.bytes(Direction::ToServer),
        two.bytes(Direction::ToServer),
    ];
    one.latency(latency);
    two.latency(latency);
    place.enqueue(&numbered(&topic, events)).await;
    place.until_count("status = 'done'", events).await;
    let after = [
        one.bytes(Direction::ToServer),
        two.bytes(Direction::ToServer),
    ];
    for (before, after) in before.iter().zip(after) {
        let event_bytes_min = 100;
        assert!(after - before > event_bytes_min, "both relays took part");
    }
    one.pass();
    two.pass();

    // A transaction that stays open longer than any sweep would wait, and a row that is old when it
    // is committed.
    let mut late = place.pool.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO outbox.queue (topic, event_type, payload_bytes, created_at, next_attempt_at)
         SELECT $1, 'Late', 'x', now() - interval '10 minutes', now() - interval '10 minutes'
         FROM generate_series(1, 100)",
    )
    .bind(&topic)
    .execute(&mut *late)
    .await
    .unwrap();
    let polls = Duration::from_secs(scaled(1, 60));
    tokio::time::sleep(polls).await;
    assert_eq!(place.entries(&topic).await.len(), events, "I1");
    late.commit().await.unwrap();
    place.until_count("status = 'done'", events + 100).await;
    for relay in relays {
        relay.stop().await;
    }
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), events + 100);
    assert!(
        copies.values().all(|count| *count == 1),
        "each exactly once"
    );
    assert_eq!(place.count("attempts <> 1 OR crashes <> 0").await, 0);
}
