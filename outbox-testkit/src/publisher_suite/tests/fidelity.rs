//! I4, I10: what arrives is what was enqueued.

use outbox_core::{Event, StoredEvent};

use crate::{
    documents,
    publisher_suite::bench::{PublisherBench, assert_delivered, assert_same, publish, stored},
};

/// Publishes these, reads them back, compares each with what was sent.
async fn there_and_back(bench: &PublisherBench, topic: &str, events: &[StoredEvent]) {
    let publisher = bench.publisher().await;
    assert_delivered(&publish(&*publisher, events).await);
    let received = bench.consume(topic, events.len()).await;
    assert_eq!(received.len(), events.len());
    for event in events {
        let message = received.iter().find(|message| message.id == event.id);
        assert_same(event, message.expect("the event arrived"), bench.gates());
    }
}

/// Case null-payload: null, empty, the text "null" and any byte are kept apart.
pub async fn null_payload(bench: &PublisherBench) {
    let topic = bench.topic().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let payloads: [Option<&[u8]>; 7] = [
        None,
        Some(b""),
        Some(b"null"),
        Some(&every_byte),
        Some(&[0xff, 0xfe]),
        Some(b"a\0b"),
        Some(b"line\r\nbreak\r\n"),
    ];
    let events: Vec<_> = payloads
        .into_iter()
        .enumerate()
        .map(|(n, payload)| {
            stored(
                n,
                Event::new(topic.as_str(), "T").key(format!("k{n}")),
                payload,
            )
        })
        .collect();
    there_and_back(bench, &topic, &events).await;
}

/// Case number-fidelity: JSON arrives as it was written, byte for byte.
pub async fn number_fidelity(bench: &PublisherBench) {
    json_there_and_back(bench, &documents::NUMBERS).await;
}

/// Case nul-in-jsonb: NUL is a byte like any other, whether escaped or not.
pub async fn nul_in_jsonb(bench: &PublisherBench) {
    json_there_and_back(bench, &documents::NULS).await;
}

async fn json_there_and_back(bench: &PublisherBench, documents: &[&str]) {
    let topic = bench.topic().await;
    let event = |(n, document): (usize, &&str)| {
        let builder = Event::new(topic.as_str(), "T").content_type("application/json");
        stored(n, builder, Some(document.as_bytes()))
    };
    let events: Vec<_> = documents.iter().enumerate().map(event).collect();
    there_and_back(bench, &topic, &events).await;
}

/// No key, an empty key and odd ones are kept apart; every field arrives.
pub async fn i10_every_field_arrives(bench: &PublisherBench) {
    let topic = bench.topic().await;
    let new = |event_type: &str| Event::new(topic.as_str(), event_type.to_owned());
    let builders = [
        new("no key"),
        new("empty key").key(""),
        new("odd key").key("größe/\u{1f980} \"x\" {}"),
        new("aggregate").aggregate("order", "4711"),
        new("aggregate and key")
            .aggregate("order", "4711")
            .key("other"),
        new("version").version(7),
        new("content type").content_type("application/json; charset=utf-8"),
        new("Typ é"),
    ];
    let events: Vec<_> = builders
        .into_iter()
        .enumerate()
        .map(|(n, builder)| stored(n, builder, Some(b"{}")))
        .collect();
    there_and_back(bench, &topic, &events).await;
}

/// Headers arrive; in order, with duplicates and any bytes where the broker can.
pub async fn i10_headers_arrive(bench: &PublisherBench) {
    let topic = bench.topic().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let new = || Event::new(topic.as_str(), "T");
    let builders = [
        new(),
        new().header("one", "1"),
        new()
            .header("twice", "1")
            .header("other", "x")
            .header("twice", "2"),
        new().header("empty", ""),
        new().header("binary", every_byte),
        new().header("text", "größe \u{1f980}"),
        new().trace_context(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            Some("a=b"),
        ),
    ];
    let events: Vec<_> = builders
        .into_iter()
        .enumerate()
        .map(|(n, builder)| stored(n, builder.key(format!("k{n}")), Some(b"x")))
        .collect();
    there_and_back(bench, &topic, &events).await;
}

/// A copy carries the same id, bytes and headers; a later attempt does not show on the wire.
pub async fn i4_copies_are_equal(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    let topic = bench.topic().await;
    let builder = Event::new(topic.as_str(), "T").key("k").header("h", "v");
    let mut event = stored(0, builder, Some(b"payload"));
    assert_delivered(&publish(&*publisher, std::slice::from_ref(&event)).await);
    event.attempts = 5;
    event.crashes = 1;
    assert_delivered(&publish(&*publisher, std::slice::from_ref(&event)).await);
    let expected = if publisher.capabilities().dedup_by_id {
        1
    } else {
        2
    };
    let received = bench.consume(&topic, expected).await;
    assert_eq!(
        received.len(),
        expected,
        "copies are dropped exactly where the capabilities say so"
    );
    for message in &received {
        assert_same(&event, message, bench.gates());
        assert_eq!(message, &received[0]);
    }
}
