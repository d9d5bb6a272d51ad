//! What is stored is what was given.

use bytes::Bytes;
use outbox_core::{
    Capabilities, Encoding, ErrorKind, Event, Headers, OrderClass, Outcome, Publisher, Scope,
};
use outbox_redis::{RedisConfig, RedisPublisher};
use outbox_testkit::servers::Redis;

use crate::support::{
    all_delivered, connection, entries, first_appearances, numbers, publisher, run, shared_url,
    stored, unique,
};

/// Case null-payload.
#[tokio::test]
async fn i10_null_and_empty_are_kept_apart() {
    let topic = unique("null");
    let event = |key: Option<&str>| {
        let event = Event::new(&topic, "T");
        match key {
            Some(key) => event.key(key),
            None => event,
        }
    };
    let events = [
        stored(&event(None).tombstone().unwrap()),
        stored(&event(Some("")).bytes("").unwrap()),
        stored(&event(Some("k")).bytes("null").unwrap()),
    ];
    let url = shared_url();
    all_delivered(&publisher(&url).publish(&events).await);
    let mut connection = connection(&url).await;
    let stored = entries(&mut connection, &topic).await;
    let seen: Vec<_> = stored
        .iter()
        .map(|entry| {
            (
                entry.text("payload"),
                entry.text("outbox-null"),
                entry.text("key"),
            )
        })
        .collect();
    let expected = [
        (Some(""), Some("1"), None),
        (Some(""), None, Some("")),
        (Some("null"), None, Some("k")),
    ];
    assert_eq!(seen, expected);
    run(&mut connection, &format!("DEL {topic}")).await;
}

#[tokio::test]
async fn i4_i10_bytes_headers_and_names_arrive_unchanged() {
    let topic = unique("bytes");
    let payload: Vec<u8> = (0..=255).chain([13, 10, 0]).collect();
    let headers: Headers = [
        ("a", Bytes::from("1")),
        ("a", Bytes::from("2")),
        ("empty", Bytes::new()),
        ("binary", Bytes::from(vec![0xff, 0, 13, 10])),
        ("nul", Bytes::from(vec![0])),
        (
            "traceparent",
            Bytes::from("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ),
        ("text", Bytes::from("ünï\r\nXADD evil * a b\r\n")),
    ]
    .into_iter()
    .collect();
    let mut event = stored(
        &Event::new(&topic, "Typ é")
            .aggregate("order", "47\u{a0}11")
            .version(7)
            .content_type("application/octet-stream")
            .bytes(payload.clone())
            .unwrap(),
    );
    event.headers = headers.clone();
    let url = shared_url();
    let outcomes = publisher(&url).publish(std::slice::from_ref(&event)).await;
    all_delivered(&outcomes);
    let mut connection = connection(&url).await;
    let stored = entries(&mut connection, &topic).await;
    assert_eq!(stored.len(), 1);
    let entry = &stored[0];
    assert_eq!(entry.bytes("payload"), Some(&payload[..]));
    let read = serde_json::from_str(entry.text("headers").unwrap()).unwrap();
    assert_eq!(Headers::from_json(&read).unwrap(), headers);
    assert_eq!(entry.text("event-id"), Some(event.id.to_string().as_str()));
    assert_eq!(entry.text("event-type"), Some("Typ é"));
    assert_eq!(entry.text("event-version"), Some("7"));
    assert_eq!(entry.text("key"), Some("47\u{a0}11"));
    assert_eq!(entry.text("aggregate-id"), Some("47\u{a0}11"));
    assert_eq!(entry.text("aggregate-type"), Some("order"));
    assert_eq!(entry.text("content-type"), Some("application/octet-stream"));
    assert_eq!(entry.text("outbox-null"), None);
    let Outcome::Delivered(receipt) = &outcomes[0] else {
        panic!();
    };
    assert_eq!(receipt.position.as_ref(), Some(&entry.id));
    run(&mut connection, &format!("DEL {topic}")).await;
}

/// Case nats-subject-injection, for a protocol that counts bytes: any text is a stream's name, and
/// nothing in it becomes a command.
#[tokio::test]
async fn names_are_never_commands() {
    let server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    let names = [
        "a b",
        "a\r\nXADD evil * a b\r\n",
        "a..b",
        "a.*",
        ">",
        "\0",
        "$",
        &"x".repeat(300),
    ];
    let mut events = numbers("plain", 0..names.len() + 2);
    for (event, name) in events.iter_mut().zip(names) {
        name.clone_into(&mut event.topic);
    }
    events[names.len()].topic.clear();
    let outcomes = publisher.publish(&events).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == names.len() {
            let Outcome::Rejected(error) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(error.kind(), ErrorKind::InvalidTopic);
            assert_eq!(error.failure_scope(), Scope::Message);
        } else {
            assert!(outcome.is_delivered(), "{index}: {outcome:?}");
        }
    }
    let mut connection = connection(&server.url()).await;
    for (index, name) in names.iter().enumerate() {
        let stored = entries(&mut connection, name).await;
        assert_eq!(stored.len(), 1, "{name:?}");
        assert_eq!(stored[0].number(), index);
    }
    let keys: usize = redis::cmd("DBSIZE")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(keys, names.len() + 1);
}

/// Case oversize-payload: the server's own number, to the byte, and no harm to neighbours.
#[tokio::test]
async fn oversize_is_refused_before_the_wire() {
    const LIMIT: usize = 1 << 20;
    let server = Redis::start_with(&["--proto-max-bulk-len", "1mb"]).unwrap();
    let publisher = publisher(&server.url());
    let mut events = numbers("t", 0..7);
    for (index, bytes) in [(1, LIMIT - 1), (3, LIMIT), (5, LIMIT + 1)] {
        events[index].payload = Some(vec![b'1'; bytes].into());
    }
    let outcomes = publisher.publish(&events).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == 5 {
            let Outcome::Rejected(error) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.to_string().contains("1048577"), "{error}");
        } else {
            assert!(outcome.is_delivered(), "{index}: {outcome:?}");
        }
    }
    let stored = entries(&mut connection(&server.url()).await, "t").await;
    let lengths: Vec<_> = stored
        .iter()
        .map(|e| e.bytes("payload").unwrap().len())
        .collect();
    assert_eq!(lengths, [1, LIMIT - 1, 1, LIMIT, 1, 1]);
    assert_eq!(
        publisher.capabilities(),
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: false,
            null_payload: false,
            message_bytes_max: Some(LIMIT),
        }
    );
    assert_eq!(publisher.name(), "redis");
}

#[tokio::test]
async fn i8_a_batch_of_100_000_goes_in_bounded_parts_and_in_order() {
    let server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    let events = numbers("t", 0..100_000);
    all_delivered(&publisher.publish(&events).await);
    let mut connection = connection(&server.url()).await;
    let stored = entries(&mut connection, "t").await;
    assert_eq!(stored.len(), 100_000);
    assert!(first_appearances(&stored).into_iter().eq(0..100_000));
    // The largest query that the server ever had to hold tells how large the parts were.
    let stats: String = redis::cmd("INFO")
        .arg("clients")
        .query_async(&mut connection)
        .await
        .unwrap();
    let largest = stats
        .lines()
        .find_map(|line| line.strip_prefix("client_recent_max_input_buffer:"))
        .and_then(|bytes| bytes.trim().parse::<usize>().ok());
    assert!(largest.is_some_and(|bytes| bytes < 8 << 20), "{largest:?}");
}

#[tokio::test]
async fn an_empty_batch_and_concurrent_calls() {
    let url = shared_url();
    let publisher = publisher(&url);
    assert!(publisher.publish(&[]).await.is_empty());
    let topics: Vec<_> = (0..8).map(|_| unique("many")).collect();
    let calls = topics.iter().map(|topic| {
        let publisher = &publisher;
        async move { publisher.publish(&numbers(topic, 0..1_200)).await }
    });
    let outcomes = futures::future::join_all(calls).await;
    let mut connection = connection(&url).await;
    for (topic, outcomes) in topics.iter().zip(outcomes) {
        all_delivered(&outcomes);
        let stored = entries(&mut connection, topic).await;
        assert_eq!(stored.len(), 1_200);
        // Each answer belongs to its event.
        for (index, (entry, outcome)) in stored.iter().zip(&outcomes).enumerate() {
            assert_eq!(entry.number(), index);
            assert!(
                matches!(outcome, Outcome::Delivered(r) if r.position.as_ref() == Some(&entry.id))
            );
        }
        run(&mut connection, &format!("DEL {topic}")).await;
    }
}

/// Case redis-maxlen-trim: only when asked.
#[tokio::test]
async fn redis_maxlen_trim_only_when_set() {
    let server = Redis::start().unwrap();
    let publisher = crate::support::configured(&server.url(), |c| c.stream_entries_max = Some(100));
    all_delivered(&publisher.publish(&numbers("trimmed", 0..2_000)).await);
    let mut connection = connection(&server.url()).await;
    let stored = entries(&mut connection, "trimmed").await;
    assert!((100..400).contains(&stored.len()), "{}", stored.len());
    assert_eq!(stored.last().unwrap().number(), 1_999);
    let publisher = crate::support::publisher(&server.url());
    all_delivered(&publisher.publish(&numbers("whole", 0..2_000)).await);
    assert_eq!(entries(&mut connection, "whole").await.len(), 2_000);
}

#[tokio::test]
async fn i10_each_encoding_names_the_attributes() {
    let event = Event::new("unset", "OrderPlaced")
        .aggregate("order", "4711")
        .json(&1)
        .unwrap();
    let source = "/shop/orders".to_owned();
    let url = shared_url();
    let mut connection = connection(&url).await;
    let id = event.id().to_string();
    for (encoding, expected) in [
        (
            Encoding::Plain,
            [("event-id", &*id), ("event-type", "OrderPlaced")],
        ),
        (
            Encoding::Debezium,
            [("id", &*id), ("eventType", "OrderPlaced")],
        ),
        (
            Encoding::CloudEvents { source },
            [("ce_id", &*id), ("ce_source", "/shop/orders")],
        ),
    ] {
        let topic = unique("encoding");
        let mut config = RedisConfig::new(&url);
        config.encoding = encoding;
        let event = outbox_core::StoredEvent {
            topic: topic.clone(),
            ..stored(&event)
        };
        let publisher = RedisPublisher::new(config).unwrap();
        publisher.validate(&event).unwrap();
        all_delivered(&publisher.publish(&[event]).await);
        let entries = entries(&mut connection, &topic).await;
        for (name, value) in expected {
            assert_eq!(entries[0].text(name), Some(value), "{name}");
        }
        assert_eq!(entries[0].text("content-type"), Some("application/json"));
        run(&mut connection, &format!("DEL {topic}")).await;
    }
}
