//! An event as an AMQP message. docs.md has the table.

use bytes::Bytes;
use lapin::{
    BasicProperties,
    types::{AMQPValue, ByteArray, FieldTable, LongString, ShortString},
};
use outbox_core::{Attribute, Binding, Encoding, Error, ErrorKind, Result, StoredEvent};

use crate::error::PUBLISH;

/// The longest text of names and ids in the protocol.
const SHORT_MAX: usize = 255;
/// A frame's type, channel, length and end.
const FRAME_BYTES: usize = 8;
/// The frame of the properties without them: class, weight, size of the body, flags.
const HEADER_BYTES: usize = FRAME_BYTES + 2 + 2 + 8 + 2;
/// Delivery mode, message id with its length, timestamp.
const FIXED_BYTES: usize = 1 + (1 + 36) + 8;
const PERSISTENT: u8 = 2;

/// What the server takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The body.
    pub(crate) body_bytes_max: usize,
    /// A frame; the properties must fit in one.
    pub(crate) frame_bytes_max: usize,
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// Exchange and routing key: without a slash the default exchange and the queue's name.
pub(crate) fn address(topic: &str) -> (&str, &str) {
    topic.split_once('/').unwrap_or(("", topic))
}

/// Whether the event can be written.
///
/// # Errors
/// Why this server can't take it; message scope.
pub(crate) fn validate(event: &StoredEvent, encoding: &Encoding, limits: Limits) -> Result<()> {
    encode(event, encoding, limits).map(drop)
}

/// Writes the message.
///
/// # Errors
/// As [`validate`].
pub(crate) fn encode(event: &StoredEvent, encoding: &Encoding, limits: Limits) -> Result<Message> {
    let body = event.payload.clone().unwrap_or_default();
    if body.len() > limits.body_bytes_max {
        let what = "the payload is over the limit";
        return Err(too_large(what, body.len(), limits.body_bytes_max));
    }
    let (exchange, routing_key) = address(&event.topic);
    if exchange.is_empty() && routing_key.is_empty() {
        return Err(rejected(
            ErrorKind::InvalidTopic,
            "the topic names neither an exchange nor a queue",
        ));
    }
    let topic = |text: &str| {
        short(text).ok_or_else(|| {
            rejected(
                ErrorKind::InvalidTopic,
                "exchange and routing key have at most 255 bytes each",
            )
            .context("bytes", text.len())
        })
    };
    let (exchange, routing_key) = (topic(exchange)?, topic(routing_key)?);
    let (properties, bytes) = properties(event, encoding)?;
    if bytes > limits.frame_bytes_max {
        let what = "properties and headers are over the server's frame_max";
        return Err(too_large(what, bytes, limits.frame_bytes_max));
    }
    Ok(Message {
        exchange,
        routing_key,
        properties,
        body,
    })
}

/// The properties, and the bytes of their frame.
fn properties(event: &StoredEvent, encoding: &Encoding) -> Result<(BasicProperties, usize)> {
    let text = |name: &'static str, text: &str| {
        short(text).ok_or_else(|| {
            let what = "the field has at most 255 bytes in AMQP";
            rejected(ErrorKind::TooLarge, what)
                .context("field", name)
                .context("bytes", text.len())
        })
    };
    let (headers, headers_bytes) = headers(event, encoding)?;
    let mut bytes = HEADER_BYTES + FIXED_BYTES + headers_bytes + 1 + event.event_type.len();
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(event.id.to_string().into())
        .with_type(text("event type", &event.event_type)?)
        .with_headers(headers);
    // Times before 1970 are in the header only.
    if let Ok(seconds) = u64::try_from(event.created_at.unix_timestamp()) {
        properties = properties.with_timestamp(seconds);
    }
    if let Some(content_type) = &event.content_type {
        properties = properties.with_content_type(text("content type", content_type)?);
        bytes += 1 + content_type.len();
    }
    Ok((properties, bytes))
}

/// The table of headers and its bytes.
fn headers(event: &StoredEvent, encoding: &Encoding) -> Result<(FieldTable, usize)> {
    encoding.check_headers(event, Binding::Amqp)?;
    let mut table = Table::default();
    let is_plain = matches!(encoding, Encoding::Plain);
    let mut written = Ok(());
    encoding.attributes(event, Binding::Amqp, |attribute, name, value| {
        // These are properties of the message in every encoding.
        let is_property = match attribute {
            Attribute::ContentType => true,
            Attribute::Id | Attribute::Type => is_plain,
            _ => false,
        };
        if !is_property && written.is_ok() {
            written = table.insert(name, value.as_bytes());
        }
    })?;
    written?;
    if let Some(key) = &event.key {
        table.insert("outbox-key", key.as_bytes())?;
    }
    if event.payload.is_none() {
        table.insert("outbox-null", b"1")?;
    }
    for (name, value) in event.headers.iter() {
        // RabbitMQ routes copies by them, and closes the channel when they are no arrays.
        if matches!(name, "CC" | "BCC") {
            let what = "RabbitMQ takes this header for a list of further routing keys";
            return Err(rejected(ErrorKind::InvalidEvent, what).context("header", name));
        }
        table.insert(name, value)?;
    }
    Ok((table.fields, table.bytes))
}

/// A table without duplicates: a further value of a name goes as `name.2`, `name.3` and so on.
struct Table {
    fields: FieldTable,
    bytes: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            fields: FieldTable::default(),
            // The table's length.
            bytes: 4,
        }
    }
}

impl Table {
    fn insert(&mut self, name: &str, value: &[u8]) -> Result<()> {
        let long = || {
            let what = "names of headers have at most 255 bytes in AMQP";
            rejected(ErrorKind::TooLarge, what).context("bytes", name.len())
        };
        let mut key = short(name).ok_or_else(long)?;
        let mut copy = 1;
        while self.fields.contains_key(key.as_str()) {
            copy += 1;
            key = short(&format!("{name}.{copy}")).ok_or_else(long)?;
        }
        // Its length, its type, the value's length.
        self.bytes += 1 + key.as_str().len() + 1 + 4 + value.len();
        let value = match std::str::from_utf8(value) {
            Ok(text) => AMQPValue::LongString(LongString::from(text)),
            // Clients read long strings as text.
            Err(_) => AMQPValue::ByteArray(ByteArray::from(value)),
        };
        self.fields.insert(key, value);
        Ok(())
    }
}

fn short(text: &str) -> Option<ShortString> {
    (text.len() <= SHORT_MAX).then(|| ShortString::from(text))
}

fn rejected(kind: ErrorKind, what: &'static str) -> Error {
    Error::new(kind, PUBLISH, what)
}

fn too_large(what: &'static str, bytes: usize, limit: usize) -> Error {
    rejected(ErrorKind::TooLarge, what)
        .context("bytes", bytes)
        .context("limit", limit)
}

/// About how many bytes the event takes on the wire.
pub(crate) fn bytes_estimate(event: &StoredEvent) -> usize {
    event.byte_len() + 512
}

#[cfg(test)]
mod tests {
    use outbox_core::{Event, Headers, Position};
    use time::macros::datetime;

    use super::*;

    const LIMITS: Limits = Limits {
        body_bytes_max: 1000,
        frame_bytes_max: 131_072,
    };

    fn stored(event: &Event) -> StoredEvent {
        StoredEvent::from_event(event, Position(1), datetime!(2026-02-03 04:05:06.7 +02:00))
    }

    fn text(message: &Message, name: &str) -> Option<String> {
        let headers = message.properties.headers().as_ref().unwrap();
        match headers.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            AMQPValue::ByteArray(bytes) => Some(format!("{:?}", bytes.as_slice())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn i10_every_field_is_written() {
        let event = Event::new("shop/orders.new", "OrderPlaced")
            .aggregate("order", "4711")
            .key("")
            .version(3)
            .header("a", "x")
            .header("a.2", "y")
            .header("a", vec![0xff])
            .json(&1)
            .unwrap();
        let message = encode(&stored(&event), &Encoding::Plain, LIMITS).unwrap();
        assert_eq!(message.exchange.as_str(), "shop");
        assert_eq!(message.routing_key.as_str(), "orders.new");
        assert_eq!(message.body, "1");
        let properties = &message.properties;
        let short = |text: &Option<ShortString>| text.as_ref().unwrap().to_string();
        assert_eq!(short(properties.message_id()), event.id().to_string());
        assert_eq!(short(properties.kind()), "OrderPlaced");
        assert_eq!(short(properties.content_type()), "application/json");
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(*properties.timestamp(), Some(1_770_084_306));
        let expected = [
            ("outbox-key", ""),
            ("aggregate-type", "order"),
            ("aggregate-id", "4711"),
            ("event-version", "3"),
            ("created-at", "2026-02-03T02:05:06.7Z"),
            ("a", "x"),
            ("a.2", "y"),
            ("a.3", "[255]"),
        ];
        for (name, value) in expected {
            assert_eq!(text(&message, name).as_deref(), Some(value), "{name}");
        }
        let headers = message.properties.headers().as_ref().unwrap();
        assert_eq!(headers.inner().len(), expected.len());
    }

    #[test]
    fn a_null_payload_is_marked_and_an_empty_one_is_not() {
        let null = encode(
            &stored(&Event::new("q", "T").tombstone().unwrap()),
            &Encoding::Plain,
            LIMITS,
        )
        .unwrap();
        let empty = encode(
            &stored(&Event::new("q", "T").bytes("").unwrap()),
            &Encoding::Plain,
            LIMITS,
        )
        .unwrap();
        assert!(null.body.is_empty() && empty.body.is_empty());
        assert_eq!(text(&null, "outbox-null").as_deref(), Some("1"));
        assert_eq!(text(&empty, "outbox-null"), None);
        assert_eq!(text(&empty, "outbox-key"), None);
    }

    #[test]
    fn other_encodings_name_the_attributes_in_headers() {
        let event = Event::new("q", "OrderPlaced").aggregate("order", "4711");
        let event = stored(&event.content_type("text/plain").bytes("x").unwrap());
        let id = event.id.to_string();
        let source = "/shop".to_owned();
        let events = Encoding::CloudEvents { source };
        for (encoding, expected) in [
            (
                events,
                &[
                    ("cloudEvents:id", &*id),
                    ("cloudEvents:source", "/shop"),
                    ("cloudEvents:specversion", "1.0"),
                    ("cloudEvents:type", "OrderPlaced"),
                    ("cloudEvents:subject", "4711"),
                ][..],
            ),
            (
                Encoding::Debezium,
                &[("id", &*id), ("eventType", "OrderPlaced")][..],
            ),
        ] {
            let message = encode(&event, &encoding, LIMITS).unwrap();
            for (name, value) in expected {
                assert_eq!(text(&message, name).as_deref(), Some(*value), "{name}");
            }
            // By these returns are paired, and copies told.
            let message_id = message.properties.message_id().as_ref().unwrap();
            assert_eq!(message_id.as_str(), id);
            let content_type = message.properties.content_type().as_ref().unwrap();
            assert_eq!(content_type.as_str(), "text/plain");
            assert_eq!(text(&message, "content-type"), None);
            assert_eq!(text(&message, "outbox-key").as_deref(), Some("4711"));
            let mut taken = event.clone();
            taken.headers.push(expected[0].0, "theirs");
            let error = validate(&taken, &encoding, LIMITS).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEvent);
        }
    }

    #[test]
    fn the_first_slash_divides_exchange_and_key() {
        assert_eq!(address("queue"), ("", "queue"));
        assert_eq!(address("/queue/x"), ("", "queue/x"));
        assert_eq!(address("e/a.b"), ("e", "a.b"));
        assert_eq!(address("fanout/"), ("fanout", ""));
    }

    #[test]
    fn what_the_protocol_can_not_carry_is_rejected() {
        let event = |topic: &str| {
            let mut event = stored(&Event::new("t", "T").bytes("x").unwrap());
            topic.clone_into(&mut event.topic);
            event
        };
        let long = "x".repeat(256);
        let mut events = vec![
            (event(""), ErrorKind::InvalidTopic),
            (event("/"), ErrorKind::InvalidTopic),
            (event(&long), ErrorKind::InvalidTopic),
            (event(&format!("{long}/k")), ErrorKind::InvalidTopic),
        ];
        let mut changed = |kind, change: &dyn Fn(&mut StoredEvent)| {
            let mut event = event("t");
            change(&mut event);
            events.push((event, kind));
        };
        changed(ErrorKind::TooLarge, &|e| e.event_type.clone_from(&long));
        changed(ErrorKind::TooLarge, &|e| {
            e.content_type = Some(long.clone());
        });
        changed(ErrorKind::TooLarge, &|e| e.headers.push(long.clone(), "v"));
        changed(ErrorKind::TooLarge, &|e| {
            e.payload = Some(vec![0; 1001].into());
        });
        changed(ErrorKind::TooLarge, &|e| {
            e.headers = [("h", vec![b'x'; 131_072])]
                .into_iter()
                .collect::<Headers>();
        });
        changed(ErrorKind::InvalidEvent, &|e| e.headers.push("CC", "other"));
        changed(ErrorKind::InvalidEvent, &|e| e.headers.push("BCC", "other"));
        changed(ErrorKind::InvalidEvent, &|e| {
            e.created_at = datetime!(-0001-01-01 00:00 UTC);
        });
        for (event, kind) in events {
            let error = validate(&event, &Encoding::Plain, LIMITS).unwrap_err();
            assert_eq!(error.kind(), kind, "{event:?}");
            assert_eq!(error.failure_scope(), outbox_core::Scope::Message);
        }
        let mut longest = event(&format!("{}/{}", "e".repeat(255), "k".repeat(255)));
        longest.payload = Some(vec![0; 1000].into());
        longest.event_type = "x".repeat(255);
        validate(&longest, &Encoding::Plain, LIMITS).unwrap();
        longest.created_at = datetime!(1969-01-01 00:00 UTC);
        let old = encode(&longest, &Encoding::Plain, LIMITS).unwrap();
        assert_eq!(*old.properties.timestamp(), None);
    }
}
