//! What brokers refuse, and who pays for it.

use std::time::Duration;

use outbox_core::{ErrorKind, Event, Outcome, Publisher as _, Scope};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use tokio::time::Instant;

use crate::support::{
    all_delivered, configured, delete_topic, eventually, failed, first_appearances, make_topic_by,
    numbered, numbers, plain, publisher, records, shared, stored, topic, topic_with, unique,
};

/// Changes a topic's limit.
async fn limit(brokers: &str, topic: &str, bytes: &str) {
    let admin: AdminClient<DefaultClientContext> = plain(brokers).create().unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("max.message.bytes", bytes);
    let changed = admin
        .alter_configs([&change], &AdminOptions::new())
        .await
        .unwrap();
    changed[0].as_ref().unwrap();
    tokio::task::spawn_blocking(move || drop(admin))
        .await
        .unwrap();
}

/// Nothing waits for a topic that is not there, and it is found once it is made.
#[tokio::test]
async fn a_missing_topic_fails_alone_and_at_once() {
    let brokers = shared();
    let good = topic(&brokers, "good").await;
    let missing = unique("missing");
    let publisher = publisher(&brokers);
    for _ in 0..2 {
        let mut events = numbers(&good, 0..10);
        events[4].topic.clone_from(&missing);
        let started = Instant::now();
        let mut outcomes = publisher.publish(&events).await;
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{:?}",
            started.elapsed()
        );
        let outcome = outcomes.remove(4);
        let error = failed(&outcome, ErrorKind::TopicNotFound, Scope::Topic);
        assert!(error.to_string().contains(&missing), "{error}");
        all_delivered(&outcomes);
    }
    make_topic_by(&plain(&brokers), &missing, 1, &[]).await;
    let found = eventually(async || {
        let outcomes = publisher.publish(&numbers(&missing, 0..1)).await;
        outcomes[0].is_delivered().then_some(())
    });
    found.await.expect("it is there now");
}

/// A topic that goes while it is written: in doubt at first, then known to be missing.
#[tokio::test]
async fn a_deleted_topic_is_found_missing() {
    let brokers = shared();
    let (good, gone) = (topic(&brokers, "good").await, topic(&brokers, "gone").await);
    let publisher = configured(&brokers, |c| c.publish_timeout = Duration::from_secs(2));
    all_delivered(&publisher.publish(&numbers(&gone, 0..3)).await);
    delete_topic(&brokers, &gone).await;
    let found = eventually(async || {
        let mut events = numbers(&good, 0..2);
        events.extend(numbers(&gone, 3..4));
        let outcomes = publisher.publish(&events).await;
        all_delivered(&outcomes[..2]);
        let error = outcomes[2].error().expect("it is gone");
        assert_eq!(error.failure_scope(), Scope::Topic, "{error}");
        (error.kind() == ErrorKind::TopicNotFound).then_some(())
    });
    found.await.expect("the brokers say so");
}

/// A limit that was lowered since it was read: the broker refuses a whole batch of records for one of
/// them. Only that one pays; its neighbours go again without it, in order.
#[tokio::test]
async fn i7_a_batch_refused_for_one_record_goes_again_without_it() {
    let brokers = shared();
    let topic = topic(&brokers, "lowered").await;
    // Time enough to get all of them into one batch: those in a later one would be there twice.
    let publisher = configured(&brokers, |config| {
        let linger = ("linger.ms".to_owned(), "1000".to_owned());
        config.properties.extend([linger]);
    });
    all_delivered(&publisher.publish(&numbers(&topic, 0..1)).await);
    limit(&brokers, &topic, "2000").await;
    let mut events = numbers(&topic, 1..41);
    for (index, event) in events.iter_mut().enumerate() {
        event.key = Some(format!("k{}", index % 4));
    }
    events[20].payload = Some(vec![b'1'; 5_000].into());
    let mut outcomes = publisher.publish(&events).await;
    let Outcome::Rejected(error) = outcomes.remove(20) else {
        panic!("the large one was not rejected");
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    all_delivered(&outcomes);
    let stored = records(&brokers, &topic).await;
    assert_eq!(stored.len(), 40, "each once, but the large one");
    let expected = (0..41).filter(|number| *number != 21);
    assert!(first_appearances(&stored).into_iter().eq(expected));
}

/// A compacted topic takes no record without a key.
#[tokio::test]
async fn i7_an_invalid_record_fails_alone() {
    let brokers = shared();
    let topic = topic_with(&brokers, "compacted", &[("cleanup.policy", "compact")]).await;
    let publisher = publisher(&brokers);
    let mut events = numbers(&topic, 0..10);
    events[4] = stored(&Event::new(&topic, "T").bytes("4").unwrap());
    let mut outcomes = publisher.publish(&events).await;
    failed(&outcomes.remove(4), ErrorKind::Refused, Scope::Message);
    all_delivered(&outcomes);
    let stored = records(&brokers, &topic).await;
    let first = first_appearances(&stored);
    assert_eq!(first, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
}

/// Case unsendable-hot-loop: a refused event is one attempt a call and costs no time, whatever
/// becomes of the others.
#[tokio::test]
async fn unsendable_hot_loop_one_attempt_a_call() {
    let brokers = shared();
    let settings = [("message.timestamp.before.max.ms", "0")];
    let refusing = topic_with(&brokers, "refusing", &settings).await;
    let good = topic(&brokers, "good").await;
    let publisher = publisher(&brokers);
    all_delivered(&publisher.publish(&numbers(&good, 0..1)).await);
    let started = Instant::now();
    for round in 1..6 {
        let events = [numbered(&refusing, 0), numbered(&good, round)];
        let outcomes = publisher.publish(&events).await;
        failed(&outcomes[0], ErrorKind::Refused, Scope::Message);
        all_delivered(&outcomes[1..]);
    }
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    assert!(records(&brokers, &refusing).await.is_empty());
    assert_eq!(
        first_appearances(&records(&brokers, &good).await),
        [0, 1, 2, 3, 4, 5]
    );
}
