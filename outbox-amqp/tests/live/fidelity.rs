//! What is in the queue is what was given.

use bytes::Bytes;
use outbox_core::{
    Capabilities, Encoding, ErrorKind, Event, Headers, OrderClass, Outcome, Publisher, Scope,
};

use crate::support::{
    Client, all_delivered, configured, numbers, publisher, shared_url, stored, unique,
};

/// Case null-payload.
#[tokio::test]
async fn i10_null_and_empty_are_kept_apart() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let topic = unique("null");
    client.queue(&topic, &[]).await;
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
    let messages = client.messages(&topic).await;
    let seen: Vec<_> = messages
        .iter()
        .map(|m| (&*m.body, m.text("outbox-null"), m.text("outbox-key")))
        .collect();
    let text = |text: &str| Some(text.to_owned());
    let expected: [(&[u8], _, _); 3] = [
        (b"", text("1"), None),
        (b"", None, text("")),
        (b"null", None, text("k")),
    ];
    assert_eq!(seen, expected);
    client.delete_queue(&topic).await;
}

#[tokio::test]
async fn i10_headers_keep_names_values_and_copies() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let topic = unique("headers");
    client.queue(&topic, &[]).await;
    let mut event = stored(&Event::new(&topic, "Typ é").key("k").bytes("x").unwrap());
    event.headers = [
        ("a", Bytes::from("1")),
        ("a", Bytes::from("2")),
        ("a.2", Bytes::from("own")),
        ("outbox-key", Bytes::from("theirs")),
        ("empty", Bytes::new()),
        ("binary", Bytes::from(vec![0xff, 0, 13, 10])),
        ("text", Bytes::from("ünï\r\n")),
    ]
    .into_iter()
    .collect::<Headers>();
    all_delivered(&publisher(&url).publish(&[event]).await);
    let messages = client.messages(&topic).await;
    let header = |name| messages[0].header(name).map(Bytes::from);
    for (name, value) in [
        ("a", &b"1"[..]),
        ("a.2", b"2"),
        ("a.2.2", b"own"),
        ("outbox-key", b"k"),
        ("outbox-key.2", b"theirs"),
        ("empty", b""),
        ("binary", &[0xff, 0, 13, 10]),
        ("text", "ünï\r\n".as_bytes()),
    ] {
        assert_eq!(header(name).as_deref(), Some(value), "{name}");
    }
    client.delete_queue(&topic).await;
}

/// Case oversize-payload, for the other limit: properties and headers fit in one frame, to the
/// byte, and the server takes exactly that.
#[tokio::test]
async fn oversize_headers_are_refused_before_the_wire() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let topic = unique("frame");
    client.queue(&topic, &[]).await;
    let publisher = publisher(&url);
    publisher.check().await.unwrap();
    // One event for all sizes: the text of its time of creation has no fixed length.
    let event = stored(&Event::new(&topic, "T").bytes("1").unwrap());
    let with = |bytes: usize| {
        let mut event = event.clone();
        event.headers.push("h", vec![b'x'; bytes]);
        event
    };
    let mut most = 131_072;
    while publisher.validate(&with(most)).is_err() {
        most -= 1;
    }
    assert!(most > 130_000, "{most}");
    let mut events = numbers(&topic, 0..4);
    events[1] = with(most);
    events[2] = with(most + 1);
    let outcomes = publisher.publish(&events).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if index == 2 {
            let Outcome::Rejected(error) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert_eq!(error.failure_scope(), Scope::Message);
            assert!(error.to_string().contains("131073"), "{error}");
        } else {
            assert!(outcome.is_delivered(), "{index}: {outcome:?}");
        }
    }
    let messages = client.messages(&topic).await;
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[1].header("h").unwrap().len(), most);
    client.delete_queue(&topic).await;
}

#[tokio::test]
async fn each_encoding_is_read_back() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let source = "/shop/orders".to_owned();
    let events = Encoding::CloudEvents { source };
    for encoding in [Encoding::Plain, events, Encoding::Debezium] {
        let topic = unique("encoding");
        client.queue(&topic, &[]).await;
        let event = Event::new(&topic, "OrderPlaced").aggregate("order", "4711");
        let event = stored(&event.version(3).json(&1).unwrap());
        let publisher = configured(&url, |c| c.encoding = encoding.clone());
        all_delivered(&publisher.publish(std::slice::from_ref(&event)).await);
        let messages = client.messages(&topic).await;
        let mut expected = vec![("outbox-key", "4711".to_owned())];
        encoding
            .attributes(
                &event,
                outbox_core::Binding::Amqp,
                |attribute, name, value| {
                    use outbox_core::Attribute::{ContentType, Id, Type};
                    let plain = encoding == Encoding::Plain;
                    if attribute != ContentType && !(plain && matches!(attribute, Id | Type)) {
                        expected.push((name, value.to_owned()));
                    }
                },
            )
            .unwrap();
        for (name, value) in &expected {
            assert_eq!(messages[0].text(name).as_ref(), Some(value), "{name}");
        }
        let properties = &messages[0].properties;
        let headers = properties.headers().as_ref().unwrap();
        assert_eq!(headers.inner().len(), expected.len(), "{encoding:?}");
        let id = properties.message_id().as_ref().unwrap();
        assert_eq!(id.as_str(), event.id.to_string());
        let content_type = properties.content_type().as_ref().unwrap();
        assert_eq!(content_type.as_str(), "application/json");
        client.delete_queue(&topic).await;
    }
}

#[tokio::test]
async fn an_empty_batch_and_what_it_can_do() {
    let publisher = configured(&shared_url(), |c| c.message_bytes_max = 7);
    assert!(publisher.publish(&[]).await.is_empty());
    assert_eq!(
        publisher.capabilities(),
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: false,
            null_payload: false,
            message_bytes_max: Some(7),
        }
    );
    assert_eq!(publisher.name(), "amqp");
}
