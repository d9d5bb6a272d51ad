//! What the server refuses, and what it is silent about.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::DiscardPolicy;
use futures::StreamExt as _;
use outbox_core::{ErrorKind, Event, Outcome, Publisher, Scope, StoredEvent};
use outbox_testkit::servers::Nats;

use crate::support::{
    Stored, all_delivered, configured, count, failed, first_appearances, jetstream, messages,
    numbered, numbers, publish_all, publisher, stored, stream, stream_with, unknown,
};

/// Changes a stream's settings.
async fn update(
    url: &str,
    name: &str,
    set: impl FnOnce(&mut async_nats::jetstream::stream::Config),
) {
    let context = jetstream(url).await;
    let mut stream = context.get_stream(name).await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    set(&mut config);
    context.update_stream(config).await.unwrap();
}

/// A full stream refuses in order, makes its topic wait, and takes all of it when there is room.
#[tokio::test]
async fn a_full_stream_is_waited_for() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream_with(&url, "F", "full", |config| {
        config.max_messages = 100;
        config.discard = DiscardPolicy::New;
    })
    .await;
    stream(&url, "S", "t").await;
    let publisher = publisher(&url);
    let mut events = numbers("full", 0..150);
    events.extend(numbers("t", 0..5));
    let outcomes = publisher.publish(&events).await;
    all_delivered(&outcomes[..100]);
    for outcome in &outcomes[100..150] {
        failed(outcome, ErrorKind::OutOfSpace, Scope::Topic);
    }
    all_delivered(&outcomes[150..]);
    update(&url, "F", |config| config.max_messages = 1_000).await;
    all_delivered(&publisher.publish(&events[100..150]).await);
    let kept = messages(&url, "F", "full").await;
    assert_eq!(kept.len(), 150, "failed is not unknown: no copies");
    assert!(first_appearances(&kept).into_iter().eq(0..150));
}

/// What was stored though it stood behind a refused event is stored again behind that.
#[tokio::test]
async fn i5_who_passed_a_refused_event_is_stored_again_behind_it() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream_with(&url, "F", "full", |config| {
        config.max_bytes = 4_000;
        config.discard = DiscardPolicy::New;
    })
    .await;
    let publisher = publisher(&url);
    let mut large = numbered("full", 0);
    large.payload = Some(format!("{:05000}", 0).into());
    let events = [large, numbered("full", 1)];
    let outcomes = publisher.publish(&events).await;
    failed(&outcomes[0], ErrorKind::OutOfSpace, Scope::Topic);
    assert!(outcomes[1].is_delivered(), "{:?}", outcomes[1]);

    update(&url, "F", |config| config.max_bytes = 100_000).await;
    all_delivered(&publisher.publish(&events).await);
    let order: Vec<_> = messages(&url, "F", "full")
        .await
        .iter()
        .map(Stored::number)
        .collect();
    assert_eq!(order, [1, 0, 1]);
    let copies = messages(&url, "F", "full").await;
    assert_eq!(copies[0].text("event-id"), copies[2].text("event-id"));
    assert_eq!(copies[0].payload, copies[2].payload);
    assert_eq!(
        copies[2].text("Nats-Msg-Id"),
        Some(format!("{}-1", events[1].id.simple()))
    );
    // From now on it is an event like any other.
    all_delivered(&publisher.publish(&events[1..]).await);
    assert_eq!(count(&url, "F").await, 3);
}

/// The server's room is used up: everything waits.
#[tokio::test]
async fn a_full_server_is_everybodys_matter() {
    let settings =
        "jetstream { store_dir: \"$STORE\", max_memory_store: 1MB, max_file_store: 300KB }";
    let server = Nats::start_with(settings).unwrap();
    let url = server.url();
    stream(&url, "S", "t").await;
    let publisher = publisher(&url);
    let events: Vec<_> = numbers("t", 0..50)
        .into_iter()
        .map(|event| StoredEvent {
            payload: Some(vec![b'1'; 20_000].into()),
            ..event
        })
        .collect();
    let outcomes = publisher.publish(&events).await;
    let first = outcomes
        .iter()
        .position(|outcome| !outcome.is_delivered())
        .unwrap();
    for outcome in &outcomes[first..] {
        failed(outcome, ErrorKind::OutOfSpace, Scope::Destination);
    }
    assert_eq!(count(&url, "S").await, u64::try_from(first).unwrap());
    publisher.check().await.unwrap();
}

/// No stream for a subject is the topic's fault, at once; others go on.
#[tokio::test]
async fn a_missing_stream_is_its_topics_fault() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream(&url, "S", "t").await;
    let publisher = publisher(&url);
    publisher.check().await.unwrap();
    let mut events = numbers("t", 0..10);
    "nowhere".clone_into(&mut events[4].topic);
    "nowhere".clone_into(&mut events[7].topic);
    let start = Instant::now();
    let outcomes = publisher.publish(&events).await;
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == 4 || index == 7 {
            let error = failed(outcome, ErrorKind::TopicNotFound, Scope::Topic);
            assert!(error.to_string().contains("nowhere"), "{error}");
        } else {
            assert!(outcome.is_delivered(), "{outcome:?}");
        }
    }
    stream(&url, "N", "nowhere").await;
    all_delivered(&publisher.publish(&events[4..5]).await);
}

/// Without JetStream nobody answers either, and that is everybody's matter.
#[tokio::test]
async fn a_server_without_jetstream_is_told_apart_from_a_missing_stream() {
    let mut server = Nats::start_with("jetstream: false").unwrap();
    let publisher = publisher(&server.url());
    let error = publisher.check().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.failure_scope()),
        (ErrorKind::Unavailable, Scope::Destination)
    );
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        let error = failed(&outcome, ErrorKind::Unavailable, Scope::Destination);
        assert!(error.to_string().contains("JetStream"), "{error}");
    }
    server.restart_with("").unwrap();
    stream(&server.url(), "S", "t").await;
    publish_all(&publisher, &numbers("t", 0..3)).await;
}

/// Somebody who is no stream listens: no "no responders", and nothing that counts as an answer.
#[tokio::test]
async fn a_listener_is_not_taken_for_a_stream() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream(&url, "S", "t").await;
    let client = async_nats::connect(&url).await.unwrap();
    let answers = ["", "ok", r#"{"stream":"S"}"#];
    for subject in ["service", "mute", "t"] {
        let mut asked = client.subscribe(subject).await.unwrap();
        let client = client.clone();
        tokio::spawn(async move {
            while let Some(message) = asked.next().await {
                for answer in answers.iter().filter(|_| subject != "mute") {
                    client
                        .publish(message.reply.clone().unwrap(), (*answer).into())
                        .await
                        .unwrap();
                }
            }
        });
    }
    client.flush().await.unwrap();
    let publisher = publisher(&url);
    let mut events = numbers("t", 0..6);
    "service".clone_into(&mut events[1].topic);
    "mute".clone_into(&mut events[3].topic);
    let outcomes = publisher.publish(&events).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == 1 || index == 3 {
            failed(outcome, ErrorKind::TopicNotFound, Scope::Topic);
        } else {
            assert!(outcome.is_delivered(), "{index}: {outcome:?}");
        }
    }
    assert_eq!(count(&url, "S").await, 4);
}

#[tokio::test]
async fn a_stream_that_acknowledges_nothing_is_told() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream_with(&url, "N", "t", |config| config.no_ack = true).await;
    let outcomes = publisher(&url).publish(&numbers("t", 0..2)).await;
    for outcome in &outcomes {
        unknown(outcome, ErrorKind::WrongTopicType, Scope::Topic);
    }
}

#[tokio::test]
async fn a_sealed_stream_is_its_topics_fault() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream(&url, "S", "t").await;
    update(&url, "S", |config| config.sealed = true).await;
    for outcome in publisher(&url).publish(&numbers("t", 0..2)).await {
        failed(&outcome, ErrorKind::ReadOnly, Scope::Topic);
    }
}

/// Case oversize-payload, for a stream's own limit: found late unless the setting tells it.
#[tokio::test]
async fn oversize_payload_for_a_stream_is_one_events_fault() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream_with(&url, "S", "t", |config| config.max_message_size = 1_000).await;
    let mut events = numbers("t", 0..5);
    events[2].payload = Some(vec![b'1'; 1_001].into());
    let plain = publisher(&url);
    let setting = configured(&url, |c| c.message_bytes_max = Some(1_000));
    plain.check().await.unwrap();
    plain.validate(&events[2]).unwrap();
    let found = setting.validate(&events[2]).unwrap_err();
    assert_eq!(found.kind(), ErrorKind::TooLarge);
    for publisher in [plain, setting] {
        let outcomes = publisher.publish(&events).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            match outcome {
                Outcome::Rejected(error) if index == 2 => {
                    assert_eq!(
                        (error.kind(), error.failure_scope()),
                        (ErrorKind::TooLarge, Scope::Message)
                    );
                }
                outcome => assert!(index != 2 && outcome.is_delivered(), "{index}: {outcome:?}"),
            }
        }
    }
    assert_eq!(count(&url, "S").await, 4);
}

/// Case oversize-payload: the server's limit counts the headers, and going over it would cost the
/// connection.
#[tokio::test]
async fn oversize_payload_never_costs_the_connection() {
    let server = Nats::start_with("max_payload: 4KB").unwrap();
    let url = server.url();
    stream(&url, "S", "t").await;
    let publisher = publisher(&url);
    publisher.check().await.unwrap();
    assert_eq!(publisher.capabilities().message_bytes_max, Some(4_096));
    let mut events = numbers("t", 0..3);
    // Alone within the limit, with the headers over it.
    events[1].payload = Some(vec![b'1'; 4_000].into());
    assert_eq!(
        publisher.validate(&events[1]).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    let outcomes = publisher.publish(&events).await;
    assert!(
        outcomes[0].is_delivered() && outcomes[2].is_delivered(),
        "{outcomes:?}"
    );
    assert!(
        matches!(&outcomes[1], Outcome::Rejected(error) if error.kind() == ErrorKind::TooLarge)
    );
    let log = std::fs::read_to_string(server.log()).unwrap();
    assert!(!log.to_lowercase().contains("violation"), "{log}");
}

/// Case unsendable-hot-loop: what can't be sent costs the others nothing, and no attempt runs hot.
#[tokio::test]
async fn unsendable_hot_loop_does_not_happen() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream(&url, "S", "good.>").await;
    let publisher = publisher(&url);
    let mut events = vec![numbered("nowhere", 0)];
    events.extend((0..1_000).map(|n| {
        stored(
            &Event::new(format!("good.{}", n % 7), "T")
                .key(format!("k{n}"))
                .bytes("x")
                .unwrap(),
        )
    }));
    let start = Instant::now();
    for _ in 0..3 {
        let outcomes = publisher.publish(&events).await;
        failed(&outcomes[0], ErrorKind::TopicNotFound, Scope::Topic);
        all_delivered(&outcomes[1..]);
    }
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(count(&url, "S").await, 1_000, "copies are known");
}
