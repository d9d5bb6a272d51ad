//! An event as one JSON object: what the publisher `stdout` and `dead show` print.
//!
//! The names are those that `enqueue --stdin` reads. The payload stands under a name that says
//! what it is, so that bytes in are bytes out (I10): `payload` is the JSON itself, `payload_text`
//! any other UTF-8 text and JSON that has line breaks or begins or ends with blanks, `payload_base64` bytes, and a tombstone has `tombstone: true` instead.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::StoredEvent;
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// The object; its serialization is one line.
#[derive(Serialize)]
pub(crate) struct EventJson<'a> {
    id: Uuid,
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(rename = "type")]
    event_type: &'a str,
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Value>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    payload: Option<Payload<'a>>,
}

/// The payload under the name of its form.
#[derive(Serialize)]
enum Payload<'a> {
    #[serde(rename = "payload")]
    Json(&'a RawValue),
    #[serde(rename = "payload_text")]
    Text(&'a str),
    #[serde(rename = "payload_base64")]
    Bytes(String),
    #[serde(rename = "tombstone")]
    Tombstone(bool),
}

impl<'a> EventJson<'a> {
    /// The event with its payload.
    pub(crate) fn whole(event: &'a StoredEvent) -> Self {
        Self {
            payload: Some(payload(event)),
            ..Self::without_payload(event)
        }
    }

    /// The event without what may be nobody's business.
    pub(crate) fn without_payload(event: &'a StoredEvent) -> Self {
        Self {
            id: event.id,
            topic: &event.topic,
            key: event.key.as_deref(),
            event_type: &event.event_type,
            version: event.event_version,
            aggregate_type: event.aggregate_type.as_deref(),
            aggregate_id: event.aggregate_id.as_deref(),
            content_type: event.content_type.as_deref(),
            created_at: timestamp(event.created_at),
            headers: (!event.headers.is_empty()).then(|| event.headers.to_json()),
            payload: None,
        }
    }
}

/// RFC 3339, as in every output of the program.
pub(crate) fn timestamp(at: time::OffsetDateTime) -> String {
    // Only years beyond 9999 have no such form.
    at.format(&Rfc3339)
        .unwrap_or_else(|_| at.unix_timestamp().to_string())
}

/// Whether the media type is JSON: `application/json`, or a type that ends in `+json`.
pub(crate) fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || essence.len() > 5
            && essence[essence.len().saturating_sub(5)..].eq_ignore_ascii_case("+json")
}

fn payload(event: &StoredEvent) -> Payload<'_> {
    let Some(bytes) = &event.payload else {
        return Payload::Tombstone(true);
    };
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Payload::Bytes(STANDARD.encode(bytes));
    };
    if event.content_type.as_deref().is_some_and(is_json) {
        // What would not stay in its one line, or would lose its outer blanks, stands as a text,
        // whose escapes keep every byte.
        let stays = !text.contains(['\n', '\r']) && text.trim_ascii().len() == text.len();
        if stays && let Ok(json) = serde_json::from_str(text) {
            return Payload::Json(json);
        }
    }
    Payload::Text(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use outbox_core::{Event, Position};

    use super::*;

    pub(crate) fn stored(content_type: &str, payload: Option<&[u8]>) -> StoredEvent {
        let builder = Event::new("orders", "Placed")
            .id(Uuid::from_u128(7))
            .aggregate("order", "4711")
            .content_type(content_type)
            .header("h", "v")
            .header("h", vec![0xff]);
        let event = match payload {
            Some(bytes) => builder.bytes(Bytes::copy_from_slice(bytes)),
            None => builder.tombstone(),
        };
        StoredEvent::from_event(
            &event.unwrap(),
            Position(1),
            time::OffsetDateTime::UNIX_EPOCH,
        )
    }

    fn line(content_type: &str, payload: Option<&[u8]>) -> String {
        serde_json::to_string(&EventJson::whole(&stored(content_type, payload))).unwrap()
    }

    #[test]
    fn every_part_is_there() {
        assert_eq!(
            line("application/json", Some(b"{\"total\": 1.10}")),
            r#"{"id":"00000000-0000-0000-0000-000000000007","topic":"orders","key":"4711","type":"Placed","version":1,"aggregate_type":"order","aggregate_id":"4711","content_type":"application/json","created_at":"1970-01-01T00:00:00Z","headers":[["h","v"],["h",{"b64":"/w=="}]],"payload":{"total": 1.10}}"#
        );
    }

    #[test]
    fn null_payload_empty_and_json_null_are_kept_apart() {
        for (content_type, payload, end) in [
            ("application/json", None, r#""tombstone":true}"#),
            ("application/json", Some(&b""[..]), r#""payload_text":""}"#),
            ("application/json", Some(b"null"), r#""payload":null}"#),
            (
                "application/json",
                Some(b"{\n\"a\":\r\n1}"),
                r#""payload_text":"{\n\"a\":\r\n1}"}"#,
            ),
            ("application/json", Some(b" 1"), r#""payload_text":" 1"}"#),
            // No JSON, and it must not become some.
            (
                "application/json",
                Some(b"\"a\nb\""),
                r#""payload_text":"\"a\nb\""}"#,
            ),
            (
                "application/json",
                Some(b"{\"a\""),
                r#""payload_text":"{\"a\""}"#,
            ),
            (
                "application/cloudevents+json; charset=utf-8",
                Some(b"[1]"),
                r#""payload":[1]}"#,
            ),
            ("text/plain", Some(b"a\nb"), r#""payload_text":"a\nb"}"#),
            (
                "application/json",
                Some(&[0xff, 0]),
                r#""payload_base64":"/wA="}"#,
            ),
        ] {
            let line = line(content_type, payload);
            assert!(line.ends_with(end), "{line}");
            assert!(!line.contains('\n'));
        }
    }

    #[test]
    fn json_media_types_are_recognised() {
        assert!(is_json("Application/JSON; charset=utf-8"));
        assert!(is_json("application/problem+json"));
        assert!(!is_json("text/plain"));
        assert!(!is_json("+json"));
        assert!(!is_json("text/ünjson"));
    }
}
