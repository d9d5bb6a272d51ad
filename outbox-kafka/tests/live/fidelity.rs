//! What is stored is what was given, where Java would put it, in order.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use outbox_core::{Capabilities, Encoding, Event, OrderClass, Outcome, Publisher as _};
use outbox_testkit::servers::Kafka;

use crate::support::{
    all_delivered, configured, first_appearances, make_topic_by, numbers, plain, publisher,
    records, shared, stored, topic, topic_with, unique,
};

/// A single source file, run against Kafka's own jars: a line a key, a line a partition.
const JAVA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/Partitions.java");

/// What Kafka's own producer answers for these keys, each published to the topic.
fn java_partitions(brokers: &str, topic: &str, keys: &[String]) -> Vec<i32> {
    let mut java: Command = Kafka::tool(JAVA).unwrap();
    let mut java = java
        .args([brokers, topic])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = java.stdin.take().unwrap();
    for key in keys {
        writeln!(input, "{key}").unwrap();
    }
    drop(input);
    let output = java.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Case partition-key-routing: what moves from a Java producer to the outbox stays in its partition.
#[tokio::test(flavor = "multi_thread")]
async fn partition_key_routing_is_java_s() {
    const PARTITIONS: i32 = 12;
    let brokers = shared();
    let keys: Vec<String> = (0..997_usize)
        .map(|n| format!("{}-{n}", "order".repeat(n % 5)))
        .chain([String::new(), "größe".to_owned(), "\u{1f980}".to_owned()])
        .collect();
    assert_eq!(keys.len(), 1_000);
    let topics = [unique("java"), unique("ours")];
    for topic in &topics {
        make_topic_by(&plain(&brokers), topic, PARTITIONS, &[]).await;
    }
    let (url, name, its) = (brokers.clone(), topics[0].clone(), keys.clone());
    let java = tokio::task::spawn_blocking(move || java_partitions(&url, &name, &its));
    let java = java.await.unwrap();
    assert_eq!(java.len(), keys.len());

    let event = |key: &String| stored(&Event::new(&topics[1], "T").key(key).bytes("x").unwrap());
    let events: Vec<_> = keys.iter().map(event).collect();
    let outcomes = publisher(&brokers).publish(&events).await;
    all_delivered(&outcomes);
    let mut used = std::collections::BTreeSet::new();
    for ((key, java), outcome) in keys.iter().zip(&java).zip(&outcomes) {
        let Outcome::Delivered(receipt) = outcome else {
            panic!("{outcome:?}");
        };
        let position = receipt.position.as_ref().unwrap();
        let (ours, _) = position.split_once('/').unwrap();
        assert_eq!(ours, java.to_string(), "{key:?}");
        used.insert(*java);
    }
    assert_eq!(used.len(), 12, "every partition has keys");
    let stored = records(&brokers, &topics[1]).await;
    for (key, java) in keys.iter().zip(java) {
        let record = stored
            .iter()
            .find(|r| r.key.as_deref() == Some(key.as_bytes()));
        assert_eq!(record.unwrap().partition, java, "{key:?}");
    }
}

/// Case partition-key-routing: without a key any partition will do, and not always the same one.
#[tokio::test]
async fn partition_key_routing_spreads_events_without_a_key() {
    let brokers = shared();
    let topic = unique("keyless");
    make_topic_by(&plain(&brokers), &topic, 12, &[]).await;
    let publisher = publisher(&brokers);
    let mut used = std::collections::BTreeSet::new();
    // One partition is kept to for some milliseconds.
    let spread = crate::support::eventually(async || {
        let event = stored(&Event::new(&topic, "T").bytes("x").unwrap());
        let outcomes = publisher.publish(&[event]).await;
        let Outcome::Delivered(receipt) = &outcomes[0] else {
            panic!("{outcomes:?}");
        };
        let position = receipt.position.as_ref().unwrap();
        used.insert(position.split_once('/').unwrap().0.to_owned());
        (used.len() >= 4).then_some(())
    });
    spread.await.expect("more partitions than one");
}

/// Case null-payload, on the record itself: no length, not the length 0; the same for the key.
#[tokio::test]
async fn i10_null_and_empty_are_kept_apart() {
    type Bytes<'b> = Option<&'b [u8]>;
    let brokers = shared();
    let topic = topic(&brokers, "null").await;
    let event = || Event::new(&topic, "T");
    let events = [
        stored(&event().tombstone().unwrap()),
        stored(&event().key("").bytes("").unwrap()),
        stored(&event().key("k").bytes("null").unwrap()),
    ];
    let publisher = publisher(&brokers);
    all_delivered(&publisher.publish(&events).await);
    let stored = records(&brokers, &topic).await;
    let mut seen: Vec<_> = stored
        .iter()
        .map(|record| (record.key.as_deref(), record.payload.as_deref()))
        .collect();
    seen.sort_unstable();
    let expected: [(Bytes<'_>, Bytes<'_>); 3] = [
        (None, None),
        (Some(b""), Some(b"")),
        (Some(b"k"), Some(b"null")),
    ];
    assert_eq!(seen, expected);
    let capabilities = Capabilities {
        order: OrderClass::InFlight,
        dedup_by_id: false,
        null_payload: true,
        message_bytes_max: Some(1_048_588),
    };
    assert_eq!(publisher.capabilities(), capabilities);
    assert_eq!(publisher.name(), "kafka");
}

#[tokio::test]
async fn each_encoding_is_read_back() {
    let brokers = shared();
    let cloud_events = Encoding::CloudEvents {
        source: "/shop".to_owned(),
    };
    for (encoding, id, event_type, others) in [
        (Encoding::Plain, "event-id", "event-type", "created-at"),
        (Encoding::Debezium, "id", "eventType", "created-at"),
        (cloud_events, "ce_id", "ce_type", "ce_source"),
    ] {
        let topic = topic(&brokers, "encoding").await;
        let publisher = configured(&brokers, |config| config.encoding = encoding.clone());
        let event = Event::new(&topic, "OrderPlaced").key("k").header("h", "v");
        let event = stored(&event.bytes("x").unwrap());
        all_delivered(&publisher.publish(std::slice::from_ref(&event)).await);
        let stored = records(&brokers, &topic).await;
        let [record] = &stored[..] else {
            panic!("{stored:?}");
        };
        assert_eq!(record.header(id), Some(event.id.to_string().as_str()));
        assert_eq!(record.header(event_type), Some("OrderPlaced"));
        assert!(record.header(others).is_some(), "{encoding:?}");
        assert_eq!(record.header("h"), Some("v"));
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
    }
}

/// Case kafka-queue-full: a batch of many times the queue goes through it, in order and once; a
/// full queue is nobody's failure.
#[tokio::test]
async fn kafka_queue_full_waits_and_keeps_order() {
    let brokers = shared();
    let topic = topic(&brokers, "full").await;
    let publisher = configured(&brokers, |config| config.in_flight_events_max = 7);
    all_delivered(&publisher.publish(&numbers(&topic, 0..2_000)).await);
    let stored = records(&brokers, &topic).await;
    assert_eq!(stored.len(), 2_000);
    assert!(first_appearances(&stored).into_iter().eq(0..2_000));

    // The same by bytes: 40 of 100 kB through 1 MiB.
    let topic = crate::support::topic(&brokers, "bytes").await;
    let publisher = configured(&brokers, |config| config.in_flight_bytes_max = 1 << 20);
    let mut events = numbers(&topic, 0..40);
    for event in &mut events {
        event.payload = Some(vec![b'x'; 100_000].into());
    }
    all_delivered(&publisher.publish(&events).await);
    let stored = records(&brokers, &topic).await;
    let ids = stored
        .iter()
        .map(|record| record.header("event-id").unwrap());
    assert!(ids.eq(events.iter().map(|event| event.id.to_string())));
}

#[tokio::test]
async fn i5_i8_a_batch_of_50_000_goes_in_order_compressed_too() {
    let brokers = shared();
    for compression in [
        outbox_kafka::Compression::None,
        outbox_kafka::Compression::Lz4,
    ] {
        let topic = topic(&brokers, "many").await;
        let publisher = configured(&brokers, |config| config.compression = compression);
        all_delivered(&publisher.publish(&numbers(&topic, 0..50_000)).await);
        let stored = records(&brokers, &topic).await;
        assert_eq!(stored.len(), 50_000);
        assert!(first_appearances(&stored).into_iter().eq(0..50_000));
    }
}

/// Case oversize-payload, for a topic with a limit of its own: exact to the byte, and no batch of
/// small events is over it.
#[tokio::test]
async fn oversize_payload_the_topic_s_limit_is_read_and_kept() {
    let brokers = shared();
    let settings = [("max.message.bytes", "3000")];
    let topic = topic_with(&brokers, "small", &settings).await;
    let publisher = publisher(&brokers);
    // The limit is known from the first event on.
    all_delivered(&publisher.publish(&numbers(&topic, 0..500)).await);
    let mut event = crate::support::numbered(&topic, 0);
    let mut largest = 0;
    for bytes in 2_000..3_000 {
        event.payload = Some(vec![b'1'; bytes].into());
        if publisher.validate(&event).is_ok() {
            largest = bytes;
        }
    }
    for (bytes, fits) in [(largest, true), (largest + 1, false)] {
        event.payload = Some(vec![b'1'; bytes].into());
        let outcomes = publisher.publish(std::slice::from_ref(&event)).await;
        assert_eq!(outcomes[0].is_delivered(), fits, "{bytes}: {outcomes:?}");
        assert!(fits || matches!(outcomes[0], Outcome::Rejected(_)));
        // The broker agrees: one that believes the limit to be higher is refused by it.
        let believer = configured(&brokers, |c| c.message_bytes_max = Some(1_000_000));
        let outcomes = believer.publish(std::slice::from_ref(&event)).await;
        assert_eq!(outcomes[0].is_delivered(), fits, "{bytes}: {outcomes:?}");
    }
    assert_eq!(records(&brokers, &topic).await.len(), 502);
}
