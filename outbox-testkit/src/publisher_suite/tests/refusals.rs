//! A bad event pays for itself alone.

use outbox_core::{ErrorKind, Event, Outcome, Scope, StoredEvent};
use tokio::time::Instant;

use crate::publisher_suite::bench::{PATIENCE, PublisherBench, assert_delivered, publish, stored};

/// Ten events of keys of their own, the fifth replaced.
fn with_fifth(topic: &str, fifth: StoredEvent) -> Vec<StoredEvent> {
    let mut events: Vec<_> = (0..10)
        .map(|n| {
            stored(
                n,
                Event::new(topic, "T").key(format!("k{n}")),
                Some(b"good"),
            )
        })
        .collect();
    events[4] = fifth;
    events
}

/// The fifth outcome, after checking that the other nine are delivered and there once.
async fn fifth_outcome(
    bench: &PublisherBench,
    topic: &str,
    events: &[StoredEvent],
    mut outcomes: Vec<Outcome>,
) -> Outcome {
    let fifth = outcomes.remove(4);
    assert_delivered(&outcomes);
    let received = bench.consume(topic, 9).await;
    for event in events.iter().filter(|event| event.id != events[4].id) {
        let copies = received
            .iter()
            .filter(|message| message.id == event.id)
            .count();
        assert_eq!(copies, 1, "{:?}", event.key);
    }
    assert_eq!(received.len(), 9, "the fifth must not be in the topic");
    fifth
}

/// Case published-but-mark-failed: row 5 of 10 is refused; 1–4 and 6–10 are delivered once.
pub async fn published_but_mark_failed(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let Some(refusing) = bench.refusing_topic().await else {
        return;
    };
    let refused = stored(
        4,
        Event::new(refusing.as_str(), "T").key("k4"),
        Some(b"bad"),
    );
    let events = with_fifth(&topic, refused);
    let outcomes = publish(&*publisher, &events).await;
    let fifth = fifth_outcome(bench, &topic, &events, outcomes).await;
    let error = fifth.error().expect("it was refused");
    assert_ne!(
        error.failure_scope(),
        Scope::Destination,
        "neighbours would wait for it: {error}"
    );
    assert!(
        !matches!(fifth, Outcome::Unknown(_)),
        "the server said no: {fifth:?}"
    );
}

/// Case oversize-payload: one byte below the limit and at the limit pass, one above is rejected
/// before the wire, its neighbours are sent once, the connection stays.
pub async fn oversize_payload(bench: &PublisherBench) {
    let limited = bench.harness().limited().await;
    assert_eq!(
        limited.is_some(),
        bench.gates().size_limit,
        "the gate and the harness differ"
    );
    let Some(limited) = limited else { return };
    let limit = limited.publisher.capabilities().message_bytes_max;
    let limit = limit.expect("a limited publisher names its limit");
    assert!(limit < 64 * 1024 * 1024, "{limit} bytes can't be tested");

    for (bytes, fits) in [(limit - 1, true), (limit, true), (limit + 1, false)] {
        let topic = bench.topic().await;
        let sized = of_size(&topic, bytes, limited.message_len);
        let events = with_fifth(&topic, sized);
        let valid = limited.publisher.validate(&events[4]);
        let outcomes = publish(&*limited.publisher, &events).await;
        if fits {
            valid.expect("it is sent");
            assert_delivered(&outcomes);
            assert_eq!(bench.consume(&topic, 10).await.len(), 10);
            continue;
        }
        let fifth = fifth_outcome(bench, &topic, &events, outcomes).await;
        let Outcome::Rejected(error) = &fifth else {
            panic!("{bytes} bytes for a limit of {limit}: {fifth:?}");
        };
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert_eq!(error.failure_scope(), Scope::Message);
        // In time for what follows of its key.
        assert_eq!(valid.unwrap_err().kind(), ErrorKind::TooLarge);
    }
}

/// Case unsendable-hot-loop: events that can't be sent, refused by the server and over its limit, stand
/// at the head of each batch. They get one answer a call and hold nobody up.
pub async fn unsendable_hot_loop(bench: &PublisherBench) {
    const GOOD: usize = 300;
    const ROUNDS: usize = 3;
    let topic = bench.topic().await;
    let refusing = bench.refusing_topic().await;
    let (publisher, over_limit) = match bench.harness().limited().await {
        Some(limited) => {
            let limit = limited.publisher.capabilities().message_bytes_max;
            let bytes = limit.expect("a limited publisher names its limit") + 1;
            let event = of_size(&topic, bytes, limited.message_len);
            (limited.publisher, Some(event))
        }
        None => (bench.publisher().await, None),
    };
    for _ in 0..ROUNDS {
        let refused = refusing.iter().map(|refusing| {
            let builder = Event::new(refusing.as_str(), "T").key("refused");
            stored(0, builder, Some(b"bad"))
        });
        let mut events: Vec<_> = refused.chain(over_limit.clone()).collect();
        let bad = events.len();
        events.extend((0..GOOD).map(|n| {
            let builder = Event::new(topic.as_str(), "T").key(format!("k{n}"));
            stored(n, builder, Some(b"good"))
        }));
        let started = Instant::now();
        let outcomes = publish(&*publisher, &events).await;
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
        for outcome in &outcomes[..bad] {
            let error = outcome.error().expect("it can't be sent");
            assert_ne!(error.failure_scope(), Scope::Destination, "{error}");
        }
        assert_delivered(&outcomes[bad..]);
    }
    let received = bench.consume(&topic, ROUNDS * GOOD).await;
    assert_eq!(received.len(), ROUNDS * GOOD, "once each, and no bad one");
}

/// An event that the publisher counts as exactly so many bytes.
fn of_size(topic: &str, bytes: usize, message_len: fn(&StoredEvent) -> usize) -> StoredEvent {
    let mut event = stored(4, Event::new(topic, "T").key("k4"), Some(b""));
    // A length that grows with the payload, as a prefix may, is found in a few steps.
    for _ in 0..4 {
        let length = event.payload.as_ref().map_or(0, bytes::Bytes::len);
        let counted = message_len(&event);
        event.payload = Some(vec![b'x'; (length + bytes).saturating_sub(counted)].into());
    }
    assert_eq!(
        message_len(&event),
        bytes,
        "no payload makes the event exactly this long"
    );
    event
}

/// Case nats-subject-injection: names that break protocols or paths reach the topic of exactly that
/// name or are rejected, each for itself; nothing appears elsewhere and the neighbours arrive.
pub async fn hostile_topic_names(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let evil = bench.topic().await;
    let hostile = [
        String::new(),
        format!("{topic} {evil}"),
        format!("{topic}\r\nPUB {evil} 1\r\nx"),
        format!("{topic}\r\n*1\r\n$4\r\nPING"),
        format!("{topic}\0{evil}"),
        format!("{topic}..x"),
        format!("{topic}.*"),
        format!("{topic}.>"),
        format!("{topic}/../{evil}"),
        format!("{topic}größe\u{1f980}"),
        topic.repeat(300 / topic.len() + 1),
    ];
    for name in hostile {
        // Stores hand out what SQL writers wrote: no builder has checked it.
        let mut odd = stored(4, Event::new("replaced", "T").key("k4"), Some(b"odd"));
        odd.topic.clone_from(&name);
        let fresh = bench.topic().await;
        let events = with_fifth(&fresh, odd);
        let valid = publisher.validate(&events[4]);
        let outcomes = publish(&*publisher, &events).await;
        match fifth_outcome(bench, &fresh, &events, outcomes).await {
            Outcome::Delivered(_) => {
                valid.expect("it is sent");
                let received = bench.harness().consume(&name).await;
                assert!(
                    received.iter().any(|message| message.id == events[4].id),
                    "{name:?}"
                );
            }
            refused => {
                let error = refused.error().expect("it was refused");
                assert_ne!(
                    error.failure_scope(),
                    Scope::Destination,
                    "{name:?}: {error}"
                );
                assert!(
                    !matches!(refused, Outcome::Unknown(_)),
                    "{name:?}: {refused:?}"
                );
                // Names are looked at before the wire.
                let rejected = matches!(refused, Outcome::Rejected(_))
                    && error.failure_scope() == Scope::Message;
                assert_eq!(valid.is_err(), rejected, "{name:?}: {refused:?}");
            }
        }
    }
    assert!(
        bench.harness().consume(&evil).await.is_empty(),
        "a message was smuggled in"
    );
    publisher.check().await.expect("the connection survived");
}
