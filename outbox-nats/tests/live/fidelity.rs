//! What is stored is what was given.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{
    Capabilities, Encoding, ErrorKind, Event, Headers, OrderClass, Outcome, Publisher, Scope,
};
use outbox_testkit::servers::Nats;

use crate::support::{
    Stored, all_delivered, configured, count, decode, first_appearances, messages, numbers,
    publisher, shared_url, stored, stream, stream_with, unique,
};

/// Case null-payload.
#[tokio::test]
async fn null_payload_and_empty_are_kept_apart() {
    let (url, topic) = (shared_url(), unique("null"));
    stream(&url, &topic, &topic).await;
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
    all_delivered(&publisher(&url).publish(&events).await);
    let seen: Vec<_> = messages(&url, &topic, &topic)
        .await
        .iter()
        .map(|m| {
            (
                m.payload.to_vec(),
                m.text("Outbox-Null"),
                m.text("Outbox-Key"),
            )
        })
        .collect();
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        (vec![], text("1"), None),
        (vec![], None, text("")),
        (b"null".to_vec(), None, text("k")),
    ];
    assert_eq!(seen, expected);
}

/// Read back without the driver: by the protocol's own lines, and the bytes that JetStream keeps.
#[tokio::test]
async fn i4_i10_the_bytes_on_disk_are_those_that_docs_md_tells() {
    let (url, topic) = (shared_url(), unique("bytes"));
    stream(&url, &topic, &topic).await;
    let payload: Vec<u8> = (0..=255).chain([13, 10, 0]).collect();
    let headers: Headers = [
        ("a", &b"1"[..]),
        ("a", b"2"),
        ("empty", b""),
        ("binary", &[0xff, 0, 13, 10]),
        ("evil", b"x\r\nNats-Rollup: all"),
        ("space", b" x "),
        (
            "traceparent",
            b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("text", "gr\u{fc}\u{df}e".as_bytes()),
        ("marked", b"base64:eA=="),
    ]
    .into_iter()
    .map(|(name, value)| (name, value.to_vec()))
    .collect();
    let mut event = stored(
        &Event::new(&topic, "Typ \u{e9}")
            .aggregate("order", "47\u{a0}11")
            .version(7)
            .content_type("application/octet-stream")
            .bytes(payload.clone())
            .unwrap(),
    );
    event.headers = headers.clone();
    all_delivered(&publisher(&url).publish(std::slice::from_ref(&event)).await);

    let (raw, body) = raw_message(&url, &topic);
    assert_eq!(body, payload);
    let block = std::str::from_utf8(&raw).unwrap();
    let lines = block
        .strip_prefix("NATS/1.0\r\n")
        .unwrap()
        .strip_suffix("\r\n\r\n")
        .unwrap();
    let lines: Vec<_> = lines
        .split("\r\n")
        .map(|line| line.split_once(": ").unwrap())
        .collect();
    let of = |name: &str| {
        let found = lines.iter().filter(|(found, _)| *found == name);
        found.map(|(_, value)| decode(value)).collect::<Vec<_>>()
    };
    let mut names: Vec<_> = headers.iter().map(|(name, _)| name).collect();
    names.dedup();
    for name in names {
        let given: Vec<_> = headers
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, v)| v.to_vec())
            .collect();
        assert_eq!(of(name), given, "{name}");
    }
    let id = event.id.to_string();
    for (name, value) in [
        ("Nats-Msg-Id", &*id),
        ("event-id", &id),
        ("event-type", "Typ \u{e9}"),
        ("event-version", "7"),
        ("aggregate-type", "order"),
        ("aggregate-id", "47\u{a0}11"),
        ("Outbox-Key", "47\u{a0}11"),
        ("content-type", "application/octet-stream"),
    ] {
        assert_eq!(of(name), [value.as_bytes().to_vec()], "{name}");
    }
    assert_eq!(lines.len(), 9 + headers.len());
    assert!(of("Nats-Rollup").is_empty() && of("Outbox-Null").is_empty());
}

/// Header block and payload of the last message of a stream, by a client of a few lines.
fn raw_message(url: &str, stream: &str) -> (Vec<u8>, Vec<u8>) {
    let mut socket = TcpStream::connect(url.strip_prefix("nats://").unwrap()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let question = format!("{{\"last_by_subj\":\"{stream}\"}}");
    let bytes = question.len();
    let lines = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB $JS.API.STREAM.MSG.GET.{stream} answer {bytes}\r\n{question}\r\n"
    );
    socket.write_all(lines.as_bytes()).unwrap();
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = String::new();
        assert!(
            reader.read_line(&mut line).unwrap() > 0,
            "the server went away"
        );
        if let Some(rest) = line.strip_prefix("MSG ") {
            let bytes = rest.split_whitespace().last().unwrap().parse().unwrap();
            let mut json = vec![0; bytes];
            reader.read_exact(&mut json).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            let part = |name: &str| {
                let text = json["message"][name]
                    .as_str()
                    .unwrap_or_else(|| panic!("{json}"));
                STANDARD.decode(text).unwrap()
            };
            return (part("hdrs"), part("data"));
        }
    }
}

/// Case nats-subject-injection: refused for that event alone, nothing appears anywhere, and the
/// connection stays.
#[tokio::test]
async fn nats_subject_injection_reaches_no_subject() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream_with(&url, "ALL", "good", |config| {
        let others = ["evil", "a", "a.>", "x"].map(ToOwned::to_owned);
        config.subjects.extend(others);
    })
    .await;
    let publisher = publisher(&url);
    let hostile = [
        "a b",
        "a\r\nPUB evil 1\r\nx",
        "a..b",
        "a.*",
        ">",
        "",
        "a\t",
        "a\0",
        ".a",
        "$JS.API.STREAM.PURGE.ALL",
        "$JS.API.STREAM.DELETE.ALL",
    ];
    let mut events = numbers("good", 0..hostile.len() + 3);
    for (event, name) in events.iter_mut().zip(hostile) {
        name.clone_into(&mut event.topic);
    }
    events[hostile.len()].headers.push("Nats-Rollup", "all");
    events[hostile.len() + 1]
        .headers
        .push("x", "y\r\nNats-Rollup: all\r\n\r\nPUB evil 1\r\nx");
    let outcomes = publisher.publish(&events).await;
    for (index, (event, outcome)) in events.iter().zip(&outcomes).enumerate() {
        if index > hostile.len() {
            assert!(outcome.is_delivered(), "{outcome:?}");
            continue;
        }
        let Outcome::Rejected(error) = outcome else {
            panic!("{:?}: {outcome:?}", event.topic);
        };
        assert_eq!(error.failure_scope(), Scope::Message);
        assert!(matches!(
            error.kind(),
            ErrorKind::InvalidTopic | ErrorKind::InvalidEvent
        ));
        assert!(publisher.validate(event).is_err());
    }
    assert_eq!(messages(&url, "ALL", "good").await.len(), 2);
    assert_eq!(count(&url, "ALL").await, 2);
}

/// The limits that `validate` knows are those of the server.
#[tokio::test]
async fn the_longest_subject_and_the_most_headers_are_taken() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream(&url, "S", "t.>").await;
    let publisher = publisher(&url);
    publisher.check().await.unwrap();
    let mut events = numbers("t.x", 0..2);
    events[0].topic = format!("t.{}", "x".repeat(3_798));
    let event = &mut events[1];
    let mut fits = |bytes: usize| {
        event.headers = Headers::new();
        event.headers.push("h", vec![b'x'; bytes]);
        publisher.validate(event).is_ok()
    };
    let most = (64_000..65_536).rev().find(|bytes| fits(*bytes));
    assert!(most.is_some());
    all_delivered(&publisher.publish(&events).await);
    assert_eq!(count(&url, "S").await, 2);
    assert_eq!(
        publisher.capabilities(),
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: true,
            null_payload: false,
            message_bytes_max: Some(1 << 20),
        }
    );
    assert_eq!(publisher.name(), "nats");
}

/// One window after the other, whatever the batch's size.
#[tokio::test]
async fn i8_a_large_batch_goes_in_order_through_a_small_window() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream(&url, "S", "t").await;
    for (events_max, bytes_max) in [(7, 4 << 20), (10_000, 2_000), (1, 1)] {
        let publisher = configured(&url, |c| {
            c.in_flight_events_max = events_max;
            c.in_flight_bytes_max = bytes_max;
        });
        let before = messages(&url, "S", "t").await.len();
        all_delivered(&publisher.publish(&numbers("t", 0..2_000)).await);
        let stored = messages(&url, "S", "t").await.split_off(before);
        assert!(stored.iter().map(Stored::number).eq(0..2_000));
    }
}

/// A copy is a success, and the receipt names the first.
#[tokio::test]
async fn i4_a_copy_is_known_again() {
    let (url, topic) = (shared_url(), unique("copy"));
    stream(&url, &topic, &topic).await;
    let (first, second) = (publisher(&url), publisher(&url));
    let events = numbers(&topic, 0..5);
    for (publisher, copies) in [(first, false), (second, true)] {
        for (index, outcome) in publisher.publish(&events).await.iter().enumerate() {
            let Outcome::Delivered(receipt) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(receipt.duplicate, copies);
            assert_eq!(receipt.position, Some(format!("{topic}:{}", index + 1)));
        }
    }
    let stored = messages(&url, &topic, &topic).await;
    assert_eq!(first_appearances(&stored), [0, 1, 2, 3, 4]);
    assert_eq!(stored.len(), 5);
}

#[tokio::test]
async fn i10_each_encoding_names_the_attributes() {
    let (url, stream_name) = (shared_url(), unique("encodings"));
    stream(&url, &stream_name, &format!("{stream_name}.*")).await;
    let event = Event::new("unset", "OrderPlaced")
        .aggregate("order", "4 711")
        .json(&1)
        .unwrap();
    let source = "/shop/orders".to_owned();
    let id = event.id().to_string();
    let cases = [
        (
            Encoding::Plain,
            [
                ("event-id", &*id),
                ("event-type", "OrderPlaced"),
                ("aggregate-id", "4 711"),
            ],
        ),
        (
            Encoding::Debezium,
            [
                ("id", &*id),
                ("eventType", "OrderPlaced"),
                ("aggregate-id", "4 711"),
            ],
        ),
        (
            Encoding::CloudEvents { source },
            [
                ("ce-id", &*id),
                ("ce-source", "/shop/orders"),
                ("ce-subject", "4%20711"),
            ],
        ),
    ];
    for (number, (encoding, expected)) in cases.into_iter().enumerate() {
        let topic = format!("{stream_name}.{number}");
        let publisher = configured(&url, |config| config.encoding = encoding);
        let mut event = stored(&event);
        topic.clone_into(&mut event.topic);
        // Each is another message to the stream.
        event.id = uuid::Uuid::new_v4();
        let id = event.id.to_string();
        publisher.validate(&event).unwrap();
        all_delivered(&publisher.publish(&[event]).await);
        let stored = messages(&url, &stream_name, &topic).await;
        for (name, value) in expected {
            let value = if name.ends_with("id") && name != "aggregate-id" {
                &id
            } else {
                value
            };
            assert_eq!(stored[0].text(name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(
            stored[0].text("content-type").as_deref(),
            Some("application/json")
        );
    }
}
