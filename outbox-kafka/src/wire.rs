//! An event as a record. docs.md has the table.

use std::fmt;

use outbox_core::{Binding, Encoding, Error, ErrorKind, Result, StoredEvent};
use rdkafka::message::{Header, OwnedHeaders};

use crate::error::PUBLISH;

/// What stands before the records of a batch.
const BATCH_BYTES: usize = 61;
/// Attributes, the delta of the time and that of the offset, of the only record of a batch.
const RECORD_FIXED_BYTES: usize = 3;
/// Kafka's own bound: names become folders.
const TOPIC_BYTES_MAX: usize = 249;
/// How much of a topic's name an error repeats.
const TOPIC_CHARS_SHOWN: usize = 60;

/// Whether the event can be sent.
///
/// # Errors
/// Why no server takes it, or not this one with this limit; message scope.
pub(crate) fn validate(
    event: &StoredEvent,
    encoding: &Encoding,
    message_bytes_max: usize,
    payload_bytes_max: usize,
) -> Result<()> {
    check_topic(&event.topic)?;
    encoding.check_headers(event, Binding::Kafka)?;
    let bytes = message_len(event, encoding)?;
    if bytes > message_bytes_max {
        let what = "the event is over the topic's limit (max.message.bytes)";
        return Err(too_large(what, bytes, message_bytes_max));
    }
    // Such an event would wait for room in the queue for ever.
    let payload = event.payload.as_ref().map_or(0, bytes_len);
    if payload > payload_bytes_max {
        let what = "the payload is over in_flight_bytes_max";
        return Err(too_large(what, payload, payload_bytes_max));
    }
    Ok(())
}

fn bytes_len(bytes: impl AsRef<[u8]>) -> usize {
    bytes.as_ref().len()
}

fn too_large(what: &'static str, bytes: usize, limit: usize) -> Error {
    Error::new(ErrorKind::TooLarge, PUBLISH, what)
        .context("bytes", bytes)
        .context("limit", limit)
}

/// Kafka's rule for names.
pub(crate) fn check_topic(topic: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let what = if topic.is_empty() {
        "the topic is empty"
    } else if topic == "." || topic == ".." {
        "a topic can't be . or .."
    } else if topic.len() > TOPIC_BYTES_MAX {
        "the topic is longer than 249 characters"
    } else if !topic.chars().all(legal) {
        "the topic has other characters than a-z, A-Z, 0-9, dot, underscore and hyphen"
    } else {
        return Ok(());
    };
    let shown: String = topic.chars().take(TOPIC_CHARS_SHOWN).collect();
    Err(Error::new(ErrorKind::InvalidTopic, PUBLISH, what).context("topic", shown))
}

/// The event's bytes as a batch of one record that is not compressed: what a broker compares with
/// `max.message.bytes`. The format: Kafka's documentation, "Record Batch" and "Record".
///
/// # Errors
/// The event can't be written.
pub(crate) fn message_len(event: &StoredEvent, encoding: &Encoding) -> Result<usize> {
    let mut count = 0_usize;
    let mut headers = 0;
    let mut add = |name: usize, value: usize| {
        count += 1;
        headers += varint_len(name) + name + varint_len(value) + value;
    };
    encoding.attributes(event, Binding::Kafka, |_, name, value| {
        add(name.len(), value.len());
    })?;
    for (name, value) in event.headers.iter() {
        add(name.len(), value.len());
    }
    let field = |length: Option<usize>| {
        // None is the length -1.
        length.map_or(1, |length| varint_len(length) + length)
    };
    let body = RECORD_FIXED_BYTES
        + field(event.key.as_ref().map(String::len))
        + field(event.payload.as_ref().map(bytes_len))
        + varint_len(count)
        + headers;
    Ok(BATCH_BYTES + varint_len(body) + body)
}

/// The bytes of a length: seven bits each, one bit for the sign.
fn varint_len(length: usize) -> usize {
    let bits = usize::BITS - length.leading_zeros() + 1;
    (bits as usize).div_ceil(7)
}

/// The attributes and the user's headers, in this order.
///
/// # Errors
/// The event can't be written.
pub(crate) fn headers(event: &StoredEvent, encoding: &Encoding) -> Result<OwnedHeaders> {
    let mut headers = Some(OwnedHeaders::new_with_capacity(event.headers.len() + 10));
    let mut add = |name: &str, value: &[u8]| {
        let value = Some(value);
        headers = headers
            .take()
            .map(|headers| headers.insert(Header { key: name, value }));
    };
    encoding.attributes(event, Binding::Kafka, |_, name, value| {
        add(name, value.as_bytes());
    })?;
    for (name, value) in event.headers.iter() {
        add(name, value);
    }
    Ok(headers.unwrap_or_default())
}

/// Where a record stands.
pub(crate) struct Place {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Event, EventBuilder, Headers, Position};
    use rdkafka::message::Headers as _;
    use time::macros::datetime;

    use super::*;

    fn stored(builder: EventBuilder, payload: Option<&[u8]>) -> StoredEvent {
        let event = match payload {
            Some(payload) => builder.bytes(payload.to_vec()),
            None => builder.tombstone(),
        };
        let at = datetime!(2026-02-03 04:05:06.7 +02:00);
        StoredEvent::from_event(&event.unwrap(), Position(1), at)
    }

    #[test]
    fn i10_every_attribute_and_header_is_written_in_order() {
        let builder = Event::new("orders", "OrderPlaced")
            .aggregate("order", "4711")
            .version(3)
            .content_type("text/plain")
            .header("a", "x")
            .header("b", "")
            .header("a", vec![0xff, 0]);
        let event = stored(builder, Some(b"1"));
        let headers = headers(&event, &Encoding::Plain).unwrap();
        let written: Vec<_> = headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.unwrap().to_vec()))
            .collect();
        let id = event.id.to_string();
        let expected: [(&str, &[u8]); 10] = [
            ("event-id", id.as_bytes()),
            ("event-type", b"OrderPlaced"),
            ("event-version", b"3"),
            ("aggregate-type", b"order"),
            ("aggregate-id", b"4711"),
            ("content-type", b"text/plain"),
            ("created-at", b"2026-02-03T02:05:06.7Z"),
            ("a", b"x"),
            ("b", b""),
            ("a", &[0xff, 0]),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_vec()));
        assert_eq!(written, expected);
    }

    /// The lengths where one more byte is needed: zigzag has half of the range.
    #[test]
    fn lengths_grow_at_the_edges_of_zigzag_varints() {
        for (length, bytes) in [(0, 1), (63, 1), (64, 2), (8191, 2), (8192, 3), (1 << 20, 4)] {
            assert_eq!(varint_len(length), bytes, "{length}");
        }
    }

    #[test]
    fn limits_are_exact_and_count_headers_and_keys() {
        let plain = Encoding::Plain;
        let event = stored(
            Event::new("t", "T").key("key").header("h", vec![0; 100]),
            Some(&[0; 500]),
        );
        let bytes = message_len(&event, &plain).unwrap();
        validate(&event, &plain, bytes, 500).unwrap();
        for (message, payload, limit) in [(bytes - 1, 500, bytes - 1), (bytes, 499, 499)] {
            let error = validate(&event, &plain, message, payload).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.to_string().contains(&limit.to_string()), "{error}");
        }
        let mut longer = event.clone();
        longer.headers.push("i", vec![0; 7]);
        assert_eq!(message_len(&longer, &plain).unwrap(), bytes + 1 + 1 + 1 + 7);
        longer.headers = Headers::new();
        longer.key = None;
        assert_eq!(
            message_len(&longer, &plain).unwrap(),
            bytes - 3 - (1 + 1 + 2 + 100)
        );
    }

    /// Case nats-subject-injection.
    #[test]
    fn names_that_are_none_are_refused() {
        for topic in ["orders", "a.b_c-D9", "...", &"x".repeat(249)] {
            check_topic(topic).unwrap();
        }
        for topic in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "a\0",
            "größe",
            "a\r\nb",
            &"x".repeat(250),
        ] {
            let error = check_topic(topic).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidTopic, "{topic:?}");
            assert!(error.to_string().len() < 250, "{error}");
        }
    }

    #[test]
    fn a_header_of_the_encoding_s_own_name_is_refused() {
        // SQL writers can write any name.
        let mut event = stored(Event::new("t", "T"), None);
        event.headers.push("Event-Id", "1");
        let error = validate(&event, &Encoding::Plain, 1000, 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidEvent);
        validate(&event, &Encoding::Debezium, 1000, 1000).unwrap();
    }
}
