//! An event as a message of NATS. docs.md has the table.

use std::borrow::Cow;

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use outbox_core::{Binding, Encoding, Error, ErrorKind, Result, StoredEvent};

use crate::error::PUBLISH;

/// By which JetStream knows copies.
const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The server takes headers that begin so for commands: to drop all other messages of the subject, to
/// end the message after a time.
const COMMANDS: &str = "nats-";
const KEY: &str = "Outbox-Key";
const NULL: &str = "Outbox-Null";
/// Marks a value that is no header text.
const BASE64: &str = "base64:";
/// `NATS/1.0` and the empty line at the end, with their line ends.
const FRAME_BYTES: usize = 12;
/// What stands around a name and its value.
const FIELD_BYTES: usize = 4;
/// JetStream's own limit, for the whole block.
const HEADER_BYTES_MAX: usize = 65_535;
/// The server reads a line of at most 4096 bytes unless that is changed: the subject shares it with
/// the subject for the answer and the sizes.
const SUBJECT_BYTES_MAX: usize = 3_800;

/// Names and frames of the usual attributes together take less than this.
const ATTRIBUTE_BYTES: usize = 512;

/// What is sent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

/// Whether the event can be sent.
///
/// # Errors
/// As [`encode`].
pub(crate) fn validate(event: &StoredEvent, encoding: &Encoding, bytes_max: usize) -> Result<()> {
    let mut headers = FRAME_BYTES;
    each_header(event, encoding, &event.id.to_string(), |name, value| {
        headers += name.len() + value.len() + FIELD_BYTES;
        Ok(())
    })?;
    check_bytes(event, headers, bytes_max)
}

/// Writes the message. `message_id` is what the server drops copies by.
///
/// # Errors
/// Why no server can take it; message scope.
pub(crate) fn encode(
    event: &StoredEvent,
    encoding: &Encoding,
    message_id: &str,
    bytes_max: usize,
) -> Result<Message> {
    let mut headers = HeaderMap::new();
    let mut header_bytes = FRAME_BYTES;
    each_header(event, encoding, message_id, |name, value| {
        header_bytes += name.len() + value.len() + FIELD_BYTES;
        let name: HeaderName = name.parse().map_err(|_| name_error(name))?;
        let value: HeaderValue = value
            .parse()
            .map_err(|_| rejected(ErrorKind::Internal, "a header's value was not made text"))?;
        headers.append(name, value);
        Ok(())
    })?;
    check_bytes(event, header_bytes, bytes_max)?;
    Ok(Message {
        headers,
        payload: event.payload.clone().unwrap_or_default(),
    })
}

fn each_header(
    event: &StoredEvent,
    encoding: &Encoding,
    message_id: &str,
    mut put: impl FnMut(&str, &str) -> Result<()>,
) -> Result<()> {
    check_subject(&event.topic)?;
    put(MESSAGE_ID, message_id)?;
    if event.payload.is_none() {
        put(NULL, "1")?;
    }
    if let Some(key) = &event.key {
        put(KEY, &text(key.as_bytes()))?;
    }
    let mut written = Ok(());
    encoding.attributes(event, Binding::Http, |_, name, value| {
        if written.is_ok() {
            written = put(name, &text(value.as_bytes()));
        }
    })?;
    written?;
    encoding.check_headers(event, Binding::Http)?;
    for (name, value) in event.headers.iter() {
        check_name(name)?;
        put(name, &text(value))?;
    }
    Ok(())
}

/// The value as it is, where every client reads it so; else in base64 behind a mark. Clients cut off
/// space around a value, and a line break would begin the next header.
fn text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text)
            if !text.contains(char::is_control)
                && text.trim().len() == text.len()
                && !text.starts_with(BASE64) =>
        {
            Cow::Borrowed(text)
        }
        _ => Cow::Owned(format!("{BASE64}{}", STANDARD.encode(value))),
    }
}

fn check_name(name: &str) -> Result<()> {
    let odd = |c: char| !c.is_ascii_graphic() || c == ':';
    if name.is_empty() || name.contains(odd) {
        return Err(name_error(name));
    }
    let start = name.get(..COMMANDS.len()).unwrap_or_default();
    if start.eq_ignore_ascii_case(COMMANDS) {
        let what = "a header begins with `Nats-`, which would command the server: rename it";
        return Err(rejected(ErrorKind::InvalidEvent, what).context("header", name));
    }
    if [KEY, NULL].iter().any(|own| own.eq_ignore_ascii_case(name)) {
        let what = "a header has a name that the publisher writes itself: rename it";
        return Err(rejected(ErrorKind::InvalidEvent, what).context("header", name));
    }
    Ok(())
}

fn name_error(name: &str) -> Error {
    let what = "a header's name is not of printable ASCII without colon and space: rename it";
    rejected(ErrorKind::InvalidEvent, what).context("header", name)
}

/// Whether it names one subject, and is no command to the server: a space would begin the next word
/// of the line, a line break the next line, and a wildcard no single subject.
fn check_subject(topic: &str) -> Result<()> {
    let wrong = |what| Err(rejected(ErrorKind::InvalidTopic, what));
    if topic.is_empty() {
        return wrong("the topic is empty");
    }
    if topic.len() > SUBJECT_BYTES_MAX {
        let error = rejected(
            ErrorKind::InvalidTopic,
            "the topic is too long for a subject",
        );
        return Err(error
            .context("bytes", topic.len())
            .context("limit", SUBJECT_BYTES_MAX));
    }
    if topic.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return wrong("the topic has a space or a control character: no subject may");
    }
    let mut tokens = topic.split('.');
    if tokens.clone().any(str::is_empty) {
        return wrong("the topic has an empty part between dots, or a dot at an end");
    }
    if tokens.clone().any(|token| token == "*" || token == ">") {
        return wrong("the topic has a wildcard as a part");
    }
    // `$JS.API.STREAM.PURGE.…` is an order to the server, not an event.
    if tokens.next().is_some_and(|first| first.starts_with('$')) {
        return wrong("the topic begins with `$`: such subjects are the server's own");
    }
    Ok(())
}

fn check_bytes(event: &StoredEvent, headers: usize, bytes_max: usize) -> Result<()> {
    let bytes = headers + event.payload.as_ref().map_or(0, Bytes::len);
    let (what, bytes_are, limit) = if headers > HEADER_BYTES_MAX {
        (
            "the headers are over JetStream's limit",
            headers,
            HEADER_BYTES_MAX,
        )
    } else if bytes > bytes_max {
        (
            "headers and payload are over the server's max_payload, or message_bytes_max",
            bytes,
            bytes_max,
        )
    } else {
        return Ok(());
    };
    let error = rejected(ErrorKind::TooLarge, what);
    Err(error.context("bytes", bytes_are).context("limit", limit))
}

/// About how many bytes the event takes on the wire.
pub(crate) fn bytes_estimate(event: &StoredEvent) -> usize {
    event.byte_len() + ATTRIBUTE_BYTES
}

fn rejected(kind: ErrorKind, what: &'static str) -> Error {
    Error::new(kind, PUBLISH, what)
}

#[cfg(test)]
mod tests {
    use outbox_core::{Event, Position};
    use time::macros::datetime;

    use super::*;

    fn stored(event: &Event) -> StoredEvent {
        StoredEvent::from_event(event, Position(1), datetime!(2026-02-03 04:05:06.7 +02:00))
    }

    fn lines(event: &StoredEvent, encoding: &Encoding) -> Vec<String> {
        let mut lines = Vec::new();
        each_header(event, encoding, "ID", |name, value| {
            lines.push(format!("{name}: {value}"));
            Ok(())
        })
        .unwrap();
        lines
    }

    #[test]
    fn i10_every_field_is_written() {
        let event = Event::new("orders", "OrderPlaced")
            .aggregate("order", "4711")
            .key("")
            .version(3)
            .header("a", "x")
            .header("a", vec![0xff])
            .json(&1)
            .unwrap();
        let id = format!("event-id: {}", event.id());
        let expected = [
            "Nats-Msg-Id: ID",
            "Outbox-Key: ",
            &id,
            "event-type: OrderPlaced",
            "event-version: 3",
            "aggregate-type: order",
            "aggregate-id: 4711",
            "content-type: application/json",
            "created-at: 2026-02-03T02:05:06.7Z",
            "a: x",
            "a: base64:/w==",
        ];
        assert_eq!(lines(&stored(&event), &Encoding::Plain), expected);
        let message = encode(&stored(&event), &Encoding::Plain, "ID", 1 << 20).unwrap();
        let values: Vec<_> = message
            .headers
            .get_all("a")
            .map(HeaderValue::as_str)
            .collect();
        assert_eq!(values, ["x", "base64:/w=="]);
        assert_eq!(&message.payload[..], b"1");
    }

    #[test]
    fn what_is_absent_is_not_written() {
        let event = Event::new("t", "T").tombstone().unwrap();
        let id = format!("event-id: {}", event.id());
        let expected = [
            "Nats-Msg-Id: ID",
            "Outbox-Null: 1",
            &id,
            "event-type: T",
            "event-version: 1",
            "created-at: 2026-02-03T02:05:06.7Z",
        ];
        assert_eq!(lines(&stored(&event), &Encoding::Plain), expected);
        let source = "/shop".to_owned();
        let cloud = lines(&stored(&event), &Encoding::CloudEvents { source });
        assert!(cloud.contains(&"ce-source: /shop".to_owned()), "{cloud:?}");
    }

    #[test]
    fn i10_values_that_no_client_would_give_back_are_base64() {
        for plain in ["", "x", "größe \u{1f980}", "a: b", "a,  b", "Base64:x"] {
            assert_eq!(text(plain.as_bytes()), plain);
        }
        for odd in [
            " x",
            "x\t",
            "\u{a0}x",
            "a\r\nb: c",
            "a\0",
            "a\tb",
            "\u{85}",
            "base64:",
        ] {
            let written = text(odd.as_bytes());
            let encoded = written.strip_prefix(BASE64).unwrap();
            assert_eq!(STANDARD.decode(encoded).unwrap(), odd.as_bytes());
        }
        assert_eq!(text(&[0xff, 0xfe]), "base64://4=");
    }

    /// Case nats-subject-injection.
    #[test]
    fn nats_subject_injection_is_found_before_the_wire() {
        let topic = |topic: &str| {
            let mut event = stored(&Event::new("t", "T").bytes("x").unwrap());
            topic.clone_into(&mut event.topic);
            validate(&event, &Encoding::Plain, 1 << 20).map_err(|error| error.kind())
        };
        let good = [
            "a",
            "a.b",
            "größe.\u{1f980}",
            "a*b",
            "a.>b",
            "a/b:c",
            "a.$b",
            &"x".repeat(3_800),
        ];
        for good in good {
            topic(good).unwrap();
        }
        let hostile = [
            "",
            "a b",
            "a\tb",
            "a\r\nPUB evil 1\r\nx",
            "a\0",
            "a\u{a0}b",
            ".a",
            "a.",
            "a..b",
            "a.*",
            "*",
            ">",
            "a.>",
            "$JS.API.STREAM.PURGE.S",
            "$SYS.x",
            &"x".repeat(3_801),
        ];
        for hostile in hostile {
            assert_eq!(topic(hostile), Err(ErrorKind::InvalidTopic), "{hostile:?}");
        }
    }

    #[test]
    fn headers_that_break_the_protocol_or_command_the_server_are_refused() {
        let names = [
            "Nats-Rollup",
            "nats-ttl",
            "NATS-MSG-ID",
            "Outbox-Key",
            "outbox-null",
            "",
            "a b",
            "a:b",
            "größe",
            "a\r\nb",
            "Event-Id",
        ];
        for name in names {
            let mut event = stored(&Event::new("t", "T").bytes("x").unwrap());
            event.headers.push(name, "all");
            let error = validate(&event, &Encoding::Plain, 1 << 20).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEvent, "{name:?}");
            assert!(encode(&event, &Encoding::Plain, "ID", 1 << 20).is_err());
        }
        let mut event = stored(&Event::new("t", "T").bytes("x").unwrap());
        event.headers.push("Natsy", "x");
        event.headers.push("traceparent", "x");
        validate(&event, &Encoding::Plain, 1 << 20).unwrap();
    }

    /// Case oversize-payload: headers are counted.
    #[test]
    fn oversize_payload_is_found_to_the_byte() {
        let event = stored(
            &Event::new("t", "T")
                .header("h", "v")
                .bytes("payload")
                .unwrap(),
        );
        let id = event.id.to_string();
        let written = lines(&event, &Encoding::Plain);
        let headers: usize = written.iter().map(|line| line.len() + 2).sum();
        let bytes = 12 + headers - "ID".len() + id.len() + "payload".len();
        validate(&event, &Encoding::Plain, bytes).unwrap();
        encode(&event, &Encoding::Plain, &id, bytes).unwrap();
        for error in [
            validate(&event, &Encoding::Plain, bytes - 1).unwrap_err(),
            encode(&event, &Encoding::Plain, &id, bytes - 1).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::TooLarge);
        }
        let mut wide = stored(&Event::new("t", "T").bytes("x").unwrap());
        wide.headers.push("h", vec![b'x'; HEADER_BYTES_MAX]);
        let error = validate(&wide, &Encoding::Plain, 1 << 30).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
