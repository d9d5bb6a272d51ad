//! What can't be delivered keeps nobody else waiting, and arrives when its cause is gone.

use std::time::Duration;

use outbox_core::{Event, RelayConfig, RetryPolicy, Route, TopicPattern};

use crate::support::{
    Inside, Place, copies,
    inside::{faulty, refused},
    numbered,
};

const GOOD: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_poisoned_event_among_10_000() {
    let place = Place::shared().await;
    let topic = place.topic("t");
    let publisher = faulty(place.redis_url());
    publisher.on_event(|event| (event.event_type == "Poisoned").then(refused));
    let policy = RetryPolicy {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(1),
        attempts_max: 5,
        ..RetryPolicy::default()
    };
    let route = Route::new("default", publisher.clone()).policy(TopicPattern::All, policy);
    let poisoned = Event::new(&topic, "Poisoned").bytes("x").unwrap();
    let mut events = numbered(&topic, GOOD);
    events.insert(GOOD / 2, poisoned.clone());
    place.enqueue(&events).await;
    let relay = Inside::start(place.queue(|_| ()).await, route, RelayConfig::default());

    place.until_count("status = 'done'", GOOD).await;
    let dead = "event_type = 'Poisoned' AND status = 'failed' AND attempts = 5
        AND dead_reason = 'attempts_exhausted' AND error_kind = 'refused'
        AND error LIKE '%refuses it%'";
    place.until_count(dead, 1).await;
    let order = "status = 'failed'
        AND processed_at > (SELECT max(processed_at) FROM outbox.queue WHERE status = 'done')";
    assert_eq!(place.count(order).await, 1, "the good ones did not wait");
    assert_eq!(place.count("status = 'done' AND attempts <> 1").await, 0);

    // The cause is gone.
    publisher.clear_events();
    assert_eq!(place.requeue_all().await, 1);
    place.until_count("status = 'done'", GOOD + 1).await;
    relay.stop().await;
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), GOOD + 1);
    assert!(copies.values().all(|count| *count == 1));
    assert!(copies.contains_key(&poisoned.id()));
}

/// A real refusal, and the real program: the topic's name belongs to something that is no stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_topic_that_is_no_stream() {
    const EVENTS: usize = 1000;
    let place = Place::shared().await;
    let (good, taken) = (place.topic("good"), place.topic("taken"));
    let mut redis = place.redis().await;
    redis::cmd("SET")
        .arg(&taken)
        .arg("a string")
        .exec_async(&mut redis)
        .await
        .unwrap();
    let relay = place
        .relay()
        .set("routes.default.breaker.cap", "1s")
        .started()
        .await;
    let (mut events, others) = (numbered(&good, EVENTS), numbered(&taken, EVENTS));
    // Mixed in every batch.
    for (index, event) in others.into_iter().enumerate() {
        events.insert(2 * index, event);
    }
    place.enqueue(&events).await;
    place
        .until_count(&format!("topic = '{good}' AND status = 'done'"), EVENTS)
        .await;
    relay.until_log("topic failed").await;
    let waiting = format!(
        "topic = '{taken}' AND status = 'pending' AND attempts = 0 AND error_kind = 'wrong_topic_type'"
    );
    place.until_count(&waiting, EVENTS).await;
    redis::cmd("DEL")
        .arg(&taken)
        .exec_async(&mut redis)
        .await
        .unwrap();
    place.until_count("status = 'done'", 2 * EVENTS).await;
    assert_eq!(place.count("attempts <> 1").await, 0, "no attempt is burnt");
    relay.stop().await;
    for topic in [&good, &taken] {
        let copies = copies(&place.entries(topic).await);
        assert_eq!(copies.len(), EVENTS);
        assert!(copies.values().all(|count| *count == 1));
    }
}
