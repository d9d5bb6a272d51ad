//! I3, I5, I8: outcomes, order, volume.

use std::time::Duration;

use outbox_core::{Event, Outcome};
use tokio::time::{Instant, timeout};

use crate::publisher_suite::bench::{
    LONG, PATIENCE, PublisherBench, SLACK, assert_delivered, of_one_key, publish, publish_key,
    stored,
};

/// One outcome for each event, in order; what is delivered can be read, once each.
pub async fn i3_delivered_is_stored(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let events: Vec<_> = (0..10)
        .map(|n| {
            stored(
                n,
                Event::new(topic.as_str(), "T").key(format!("k{n}")),
                Some(b"x"),
            )
        })
        .collect();
    for part in events.chunks(5) {
        assert_delivered(&publish(&*publisher, part).await);
    }
    let received = bench.consume(&topic, 10).await;
    let mut ids: Vec<_> = received.iter().map(|message| message.id).collect();
    let mut sent: Vec<_> = events.iter().map(|event| event.id).collect();
    ids.sort();
    sent.sort();
    assert_eq!(ids, sent);
}

/// An empty batch has an empty answer.
pub async fn an_empty_batch_is_no_work(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    assert!(publish(&*publisher, &[]).await.is_empty());
}

/// One batch may go to several topics; each event arrives in its own.
pub async fn a_batch_may_have_several_topics(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topics = [
        bench.topic().await,
        bench.topic().await,
        bench.topic().await,
    ];
    let events: Vec<_> = (0..30)
        .map(|n| {
            let topic = &topics[n % 3];
            stored(
                n,
                Event::new(topic.as_str(), "T").key("k"),
                Some(topic.as_bytes()),
            )
        })
        .collect();
    assert_delivered(&publish_key(&*publisher, &events).await);
    for topic in &topics {
        let received = bench.consume(topic, 10).await;
        assert_eq!(received.len(), 10);
        assert!(
            received
                .iter()
                .all(|message| message.payload.as_deref() == Some(topic.as_bytes()))
        );
    }
}

/// Events of one key arrive in the order of their batch, and of their batches.
pub async fn i5_order_of_a_key(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let events = of_one_key(&topic, 500);
    for part in events.chunks(125) {
        assert_delivered(&publish_key(&*publisher, part).await);
    }
    let received = bench.consume(&topic, 500).await;
    let ids: Vec<_> = received.iter().map(|message| message.id).collect();
    assert_eq!(ids, events.iter().map(|event| event.id).collect::<Vec<_>>());
}

/// A backlog in batches of the relay's size: all of it arrives, once each.
pub async fn i8_a_backlog_in_batches(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let mut sent = Vec::new();
    for batch in 0..40 {
        let events: Vec<_> = (0..500)
            .map(|n| {
                let builder = Event::new(topic.as_str(), "T").key(format!("key-{n}"));
                stored(batch * 500 + n, builder, Some(&[7; 256]))
            })
            .collect();
        assert_delivered(&publish(&*publisher, &events).await);
        sent.extend(events.iter().map(|event| event.id));
    }
    let mut received: Vec<_> = bench
        .consume(&topic, sent.len())
        .await
        .iter()
        .map(|m| m.id)
        .collect();
    received.sort();
    sent.sort();
    assert_eq!(received.len(), sent.len());
    assert_eq!(received, sent);
}

/// A batch over every buffer on the way (16 MiB) arrives whole or is answered for event by event.
pub async fn i8_a_batch_of_many_bytes(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let payload = vec![b'x'; 512 * 1024];
    let events: Vec<_> = (0..32)
        .map(|n| {
            stored(
                n,
                Event::new(topic.as_str(), "T").key(format!("k{n}")),
                Some(&payload),
            )
        })
        .collect();
    assert_delivered(&publish(&*publisher, &events).await);
    assert_eq!(bench.consume(&topic, 32).await.len(), 32);
}

/// Several publishes at once do not mix their answers up.
pub async fn concurrent_publishes_get_their_own_answers(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topics = [bench.topic().await, bench.topic().await];
    let batches: Vec<_> = topics.iter().map(|topic| of_one_key(topic, 50)).collect();
    let calls = batches
        .iter()
        .map(|events| publish_key(&*publisher, events));
    for outcomes in futures::future::join_all(calls).await {
        assert_delivered(&outcomes);
        assert_eq!(outcomes.len(), 50);
    }
    for (topic, events) in topics.iter().zip(&batches) {
        let ids: Vec<_> = bench
            .consume(topic, 50)
            .await
            .iter()
            .map(|message| message.id)
            .collect();
        assert_eq!(ids, events.iter().map(|event| event.id).collect::<Vec<_>>());
    }
}

/// A publish that is dropped half-way leaves the publisher usable, and its late answers are taken
/// for nobody else's.
pub async fn a_cancelled_publish_harms_nobody(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let (topic, after) = (bench.topic().await, bench.topic().await);
    let refusing = bench.refusing_topic().await;
    for micros in [0, 20, 100, 500, 2_000] {
        let events = of_one_key(&topic, 100);
        // Whether it ended in time or not does not matter here.
        let _ = timeout(Duration::from_micros(micros), publisher.publish(&events)).await;
        if let Some(refusing) = &refusing {
            let refused = stored(0, Event::new(refusing.as_str(), "T"), Some(b"x"));
            let outcomes = publish(&*publisher, &[refused]).await;
            assert!(
                !outcomes[0].is_delivered(),
                "another call's answer: {outcomes:?}"
            );
        }
        let good = of_one_key(&after, 3);
        assert_delivered(&publish_key(&*publisher, &good).await);
    }
    assert_eq!(bench.consume(&after, 15).await.len(), 15);
}

/// Closing with events in flight: the publish ends, and what it calls delivered is there.
pub async fn shutdown_drops_in_flight(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(LONG).await else {
        return;
    };
    let topic = bench.topic().await;
    assert_delivered(&publish_key(&*publisher, &of_one_key(&topic, 1)).await);
    proxy.latency(Duration::from_millis(100));
    let events = of_one_key(&topic, 10);
    let started = Instant::now();
    let both = async {
        futures::join!(publish_key(&*publisher, &events), async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            publisher.close(Duration::from_secs(5)).await;
        })
        .0
    };
    let outcomes = timeout(PATIENCE, both)
        .await
        .expect("publish and close end");
    assert!(
        started.elapsed() < Duration::from_secs(5) + SLACK + SLACK,
        "{:?}",
        started.elapsed()
    );
    let delivered = outcomes
        .iter()
        .filter(|outcome| outcome.is_delivered())
        .count();
    let received = bench.consume(&topic, 1 + delivered).await;
    for (event, outcome) in events.iter().zip(&outcomes) {
        let stored = received.iter().any(|message| message.id == event.id);
        assert!(stored || !outcome.is_delivered(), "lost: {outcome:?}");
        assert!(
            !stored || !matches!(outcome, Outcome::Failed(_) | Outcome::Rejected(_)),
            "landed: {outcome:?}"
        );
    }
}

/// Close without anything in flight ends at once.
pub async fn closing_idle_ends_at_once(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    assert_delivered(&publish(&*publisher, &of_one_key(&topic, 1)).await);
    let closed = timeout(SLACK, publisher.close(LONG)).await;
    closed.expect("an idle publisher waits for nothing");
}
