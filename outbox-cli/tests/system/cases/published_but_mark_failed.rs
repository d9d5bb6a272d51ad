//! The broker has the events, the database does not know it: copies are equal, and a refused row
//! takes none of its neighbours along.

use std::{collections::BTreeSet, time::Duration};

use outbox_core::{ErrorKind, RelayConfig, RetryPolicy, Route, TopicPattern};
use outbox_testkit::{
    faulty::PublishFault,
    proxy::{Direction, FaultProxy},
};

use crate::support::{
    Inside, Place, Running, copies,
    inside::{faulty, refused},
    numbered, proxy, until,
};

const EVENTS: usize = 10;

/// The events are in the stream and acknowledged, and the relay can't reach the database.
async fn cut_behind_the_acknowledgement(place: &Place, lease: &str) -> (Running, FaultProxy) {
    let topic = place.topic("t");
    let (broker, broker_url) = proxy(place.redis_url()).await;
    let (mut database, database_url) = proxy(&place.url()).await;
    let relay = place
        .relay()
        .set("store.url", database_url)
        .set("store.lease", lease)
        .set("relay.store_backoff_max", "500ms")
        .set("routes.default.publisher.url", broker_url)
        .started()
        .await;
    broker.stall(Direction::ToClient);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    until("all events in the stream", async || {
        place.entries(&topic).await.len() == EVENTS
    })
    .await;
    assert_eq!(place.count("status = 'processing'").await, 10);
    database.refuse().await;
    broker.pass();
    relay.until_log("settle").await;
    assert_eq!(place.count("status = 'processing'").await, 10);
    // The answer has come; from here on the broker's proxy may go.
    drop(broker);
    (relay, database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_but_mark_failed() {
    let place = Place::shared().await;
    let (relay, mut database) = cut_behind_the_acknowledgement(&place, "2s").await;
    // The lease ends meanwhile, so the batch is given up.
    until("the end of the lease", async || {
        relay.metric("outbox_leases_lost_total").await >= 10.0
    })
    .await;
    relay.signal(rustix::process::Signal::TERM);
    database.accept().await.unwrap();
    let next = place.relay().started().await;
    place.until_count("status = 'done'", EVENTS).await;
    next.stop().await;

    let copies = copies(&place.entries(&place.topic("t")).await);
    assert_eq!(copies.len(), EVENTS);
    assert!(copies.values().all(|count| *count == 2), "{copies:?}");
}

/// A short cut costs nothing: the mark is written when the database is back, within the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_but_mark_failed_within_the_lease() {
    let place = Place::shared().await;
    let (relay, mut database) = cut_behind_the_acknowledgement(&place, "30s").await;
    database.accept().await.unwrap();
    place.until_count("status = 'done'", EVENTS).await;
    relay.stop().await;
    let copies = copies(&place.entries(&place.topic("t")).await);
    assert_eq!(copies.len(), EVENTS);
    assert!(copies.values().all(|count| *count == 1), "{copies:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_but_mark_failed_for_one_of_ten() {
    let place = Place::shared().await;
    let topic = place.topic("t");
    let publisher = faulty(place.redis_url());
    let mut refusals = 1;
    publisher.on_event(move |event| {
        (event.key.as_deref() == Some("k4") && refusals > 0).then(|| {
            refusals -= 1;
            refused()
        })
    });
    let policy = RetryPolicy {
        base: Duration::from_secs(2),
        cap: Duration::from_secs(2),
        ..RetryPolicy::default()
    };
    let route = Route::new("default", publisher.clone()).policy(TopicPattern::All, policy);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    let relay = Inside::start(place.queue(|_| ()).await, route, RelayConfig::default());
    place
        .until_count("status = 'done' AND attempts = 1 AND key <> 'k4'", 9)
        .await;
    assert_eq!(place.count("status = 'pending' AND attempts = 1").await, 1);
    assert_eq!(publisher.script().count(()), 1, "one call took all of them");
    place.until_count("status = 'done'", EVENTS).await;
    assert_eq!(publisher.script().count(()), 2, "only the fifth went again");
    assert_eq!(place.count("key = 'k4' AND attempts = 2").await, 1);
    let entries = place.entries(&topic).await;
    let last = entries.last().and_then(|entry| entry.text("key"));
    assert_eq!((entries.len(), last), (EVENTS, Some("k4")));

    // Refused for good, it is dead at once; the others are not touched.
    publisher
        .script()
        .next((), [PublishFault::RejectNth(4, ErrorKind::TooLarge)]);
    place.enqueue(&numbered(&topic, EVENTS)).await;
    place.until_count("status = 'done'", EVENTS + 9).await;
    place
        .until_count("status = 'failed' AND dead_reason = 'rejected'", 1)
        .await;
    relay.stop().await;
    let ids: BTreeSet<_> = place
        .entries(&topic)
        .await
        .iter()
        .map(crate::support::Entry::id)
        .collect();
    assert_eq!(ids.len(), EVENTS + 9);
    assert_eq!(place.entries(&topic).await.len(), EVENTS + 9, "no copies");
}
