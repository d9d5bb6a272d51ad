//! The event as the producer builds it.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use crate::{
    headers::Headers,
    limits::{InvalidEvent, Limits, check_name, check_text},
    trace::{TRACEPARENT, TRACESTATE},
};

/// Header names that the wire mappings write themselves (compared without regard to case).
const RESERVED_HEADERS: [&str; 8] = [
    "event-id",
    "event-type",
    "event-version",
    "aggregate-type",
    "aggregate-id",
    "content-type",
    "created-at",
    "outbox-null",
];

/// An event that is ready to be enqueued. It can only be made by [`Event::new`] and one of the
/// builder's last calls, which check it against [`Limits`]; what exists is therefore valid.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_core::Event;
/// let event = Event::new("orders", "OrderPlaced")
///     .aggregate("order", "4711")
///     .json(&serde_json::json!({ "total": 12 }))?;
/// assert_eq!(event.key(), Some("4711"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    id: Uuid,
    topic: String,
    event_type: String,
    event_version: u32,
    key: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    content_type: Option<String>,
    payload: Option<Bytes>,
    headers: Headers,
    dedup_key: Option<String>,
    deliver_after: Option<Duration>,
    /// What it was checked against, for those who add to it later.
    limits: Limits,
}

impl Event {
    /// Starts an event of this type for this topic. The id is made here (UUIDv7) and stays the same
    /// in every copy that a consumer may see (I4).
    #[expect(
        clippy::new_ret_no_self,
        reason = "an event exists only after its checks"
    )]
    pub fn new(topic: impl Into<String>, event_type: impl Into<String>) -> EventBuilder {
        EventBuilder {
            event: Self {
                id: Uuid::now_v7(),
                topic: topic.into(),
                event_type: event_type.into(),
                event_version: 1,
                key: None,
                aggregate_type: None,
                aggregate_id: None,
                content_type: None,
                payload: None,
                headers: Headers::new(),
                dedup_key: None,
                deliver_after: None,
                limits: Limits::default(),
            },
        }
    }

    /// The id by which consumers drop copies.
    pub fn id(&self) -> Uuid {
        self.id
    }
    /// Where it goes.
    pub fn topic(&self) -> &str {
        &self.topic
    }
    /// What happened.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }
    /// The schema version of the type, from 1.
    pub fn event_version(&self) -> u32 {
        self.event_version
    }
    /// What orders it: the key that was set, else the aggregate id. An empty key is a key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref().or(self.aggregate_id.as_deref())
    }
    /// What kind of thing it happened to.
    pub fn aggregate_type(&self) -> Option<&str> {
        self.aggregate_type.as_deref()
    }
    /// Which one it happened to.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.aggregate_id.as_deref()
    }
    /// The media type of the payload.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }
    /// The payload; `None` is a tombstone and not the same as an empty one (I10).
    pub fn payload(&self) -> Option<&Bytes> {
        self.payload.as_ref()
    }
    /// User headers.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }
    /// What makes it one of a kind for the producer: see [`EventBuilder::dedup_key`].
    pub fn dedup_key(&self) -> Option<&str> {
        self.dedup_key.as_deref()
    }
    /// How long after its insert it may first be sent, on the database's clock (I12).
    pub fn deliver_after(&self) -> Option<Duration> {
        self.deliver_after
    }
    /// The limits that it was checked against.
    pub fn limits(&self) -> Limits {
        self.limits
    }
    /// Payload, headers and names together, as [`Limits::event_bytes_max`] counts them.
    pub fn byte_len(&self) -> usize {
        byte_len(
            [&self.topic, &self.event_type],
            [
                &self.key,
                &self.aggregate_type,
                &self.aggregate_id,
                &self.content_type,
            ],
            &self.headers,
            self.payload.as_ref(),
        )
    }
}

/// Builds an [`Event`]; the last call ([`json`](Self::json), [`bytes`](Self::bytes),
/// [`tombstone`](Self::tombstone)) sets the payload and checks everything.
#[derive(Debug, Clone)]
#[must_use = "an event is made by json, bytes or tombstone"]
pub struct EventBuilder {
    event: Event,
}

impl EventBuilder {
    /// Takes an id of the caller's, which must be unique for ever: consumers drop copies by it.
    pub fn id(mut self, id: Uuid) -> Self {
        self.event.id = id;
        self
    }
    /// What it happened to. The id is also the key, unless one is set.
    pub fn aggregate(mut self, aggregate_type: impl Into<String>, id: impl Into<String>) -> Self {
        self.event.aggregate_type = Some(aggregate_type.into());
        self.event.aggregate_id = Some(id.into());
        self
    }
    /// Orders the event behind the earlier ones of this key, in stores that keep order.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.event.key = Some(key.into());
        self
    }
    /// The schema version of the event type; 1 unless set.
    pub fn version(mut self, version: u32) -> Self {
        self.event.event_version = version;
        self
    }
    /// The media type of the payload; `json` sets `application/json` where none is given.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.event.content_type = Some(content_type.into());
        self
    }
    /// Adds a header; names may repeat and values are bytes.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.event.headers.push(name, value);
        self
    }
    /// W3C trace context of the producer, sent along as the headers `traceparent` and `tracestate`.
    /// With the feature `otel` the last call takes it from the current span where none is given:
    /// see [`trace`](crate::trace).
    pub fn trace_context(mut self, traceparent: &str, tracestate: Option<&str>) -> Self {
        self.event.headers.push(TRACEPARENT, traceparent.to_owned());
        if let Some(state) = tracestate {
            self.event.headers.push(TRACESTATE, state.to_owned());
        }
        self
    }
    /// Lets the store write the event only once, however often the producer repeats its work: an
    /// event whose key is known already is reported as [`Enqueued::Duplicate`](crate::Enqueued) and
    /// not written. The key must be the same in every repetition and no other event's: the id of the
    /// command or of the message that caused it, never a name such as aggregate id plus event type,
    /// which two events share. It is the outbox's own and is not sent to the broker. Held to
    /// [`Limits::key_bytes_max`].
    pub fn dedup_key(mut self, dedup_key: impl Into<String>) -> Self {
        self.event.dedup_key = Some(dedup_key.into());
        self
    }
    /// Holds the event back for this long after its insert, on the database's clock.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.event.deliver_after = Some(delay);
        self
    }
    /// Other limits than the default ones, for brokers that take less or more.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.event.limits = limits;
        self
    }

    /// Finishes with the value written as JSON.
    ///
    /// # Errors
    /// [`InvalidEvent`] names the field that is over its limit or malformed.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Event, InvalidEvent> {
        let json = serde_json::to_vec(value).map_err(|e| InvalidEvent::Json(e.to_string()))?;
        self.event
            .content_type
            .get_or_insert_with(|| "application/json".to_owned());
        self.bytes(json)
    }

    /// Finishes with these bytes, which arrive as they are (I10).
    ///
    /// # Errors
    /// [`InvalidEvent`] names the field that is over its limit or malformed.
    pub fn bytes(mut self, payload: impl Into<Bytes>) -> Result<Event, InvalidEvent> {
        self.event.payload = Some(payload.into());
        self.finish()
    }

    /// Finishes without a payload: a delete marker where the broker knows one.
    ///
    /// # Errors
    /// [`InvalidEvent`] names the field that is over its limit or malformed.
    pub fn tombstone(self) -> Result<Event, InvalidEvent> {
        self.finish()
    }

    fn finish(self) -> Result<Event, InvalidEvent> {
        let event = self.event;
        let limits = event.limits;
        let texts = [
            ("key", &event.key, limits.key_bytes_max),
            (
                "aggregate type",
                &event.aggregate_type,
                limits.name_bytes_max,
            ),
            ("aggregate id", &event.aggregate_id, limits.key_bytes_max),
            ("content type", &event.content_type, limits.name_bytes_max),
        ];
        check_fields(
            [("topic", &event.topic), ("event type", &event.event_type)],
            event.event_version,
            texts,
            &event.headers,
            limits.name_bytes_max,
        )?;
        if let Some(dedup_key) = &event.dedup_key {
            check_name("dedup key", dedup_key, limits.key_bytes_max)?;
        }
        let too_long = |field, bytes, limit| {
            Err(InvalidEvent::TooLong {
                field,
                bytes,
                limit,
            })
        };
        let header_bytes = event.headers.byte_len();
        if header_bytes > limits.header_bytes_max {
            return too_long("the headers", header_bytes, limits.header_bytes_max);
        }
        let total = event.byte_len();
        if total > limits.event_bytes_max {
            return too_long(
                "the event (payload, headers and names)",
                total,
                limits.event_bytes_max,
            );
        }
        #[cfg(feature = "otel")]
        let event = {
            let mut event = event;
            let spare =
                (limits.header_bytes_max - header_bytes).min(limits.event_bytes_max - total);
            crate::trace::capture(&mut event.headers, spare, &event.topic, event.id);
            event
        };
        Ok(event)
    }
}

/// What no broker could take, whatever its limits: empty names, control characters, version 0, a
/// header that the wire mapping writes itself.
pub(crate) fn check_fields(
    names: [(&'static str, &String); 2],
    event_version: u32,
    texts: [(&'static str, &Option<String>, usize); 4],
    headers: &Headers,
    name_bytes_max: usize,
) -> Result<(), InvalidEvent> {
    for (field, name) in names {
        check_name(field, name, name_bytes_max)?;
    }
    if event_version == 0 {
        return Err(InvalidEvent::VersionZero);
    }
    for (field, text, limit) in texts {
        if let Some(text) = text {
            check_text(field, text, limit)?;
        }
    }
    for (name, _) in headers.iter() {
        check_name("header name", name, name_bytes_max)?;
        if RESERVED_HEADERS
            .iter()
            .any(|reserved| name.eq_ignore_ascii_case(reserved))
        {
            return Err(InvalidEvent::ReservedHeader {
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}

/// Payload, headers and names together.
pub(crate) fn byte_len(
    names: [&String; 2],
    texts: [&Option<String>; 4],
    headers: &Headers,
    payload: Option<&Bytes>,
) -> usize {
    let names: usize = names.into_iter().map(String::len).sum();
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    names + texts + headers.byte_len() + payload.map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_control_characters_are_refused() {
        for bad in ["a\0b", "a\nb", "a\r\nPUB x", "\u{7f}"] {
            let error = Event::new(bad, "T").bytes("x").unwrap_err();
            assert!(
                matches!(error, InvalidEvent::ControlCharacter { field: "topic", .. }),
                "{error}"
            );
            assert!(Event::new("t", bad).bytes("x").is_err());
            assert!(Event::new("t", "T").key(bad).bytes("x").is_err());
            assert!(Event::new("t", "T").header(bad, "v").bytes("x").is_err());
        }
    }

    #[test]
    fn nul_in_jsonb_names_are_refused_by_field() {
        let new = || Event::new("t", "T");
        for (field, event) in [
            ("topic", Event::new("a\0b", "T")),
            ("event type", Event::new("t", "a\0b")),
            ("key", new().key("a\0b")),
            ("aggregate type", new().aggregate("a\0b", "1")),
            ("aggregate id", new().aggregate("order", "a\0b")),
            ("content type", new().content_type("a\0b")),
            ("header name", new().header("a\0b", "v")),
            ("dedup key", new().dedup_key("a\0b")),
        ] {
            let error = event.bytes("x").unwrap_err();
            assert_eq!(error, InvalidEvent::ControlCharacter { field, at: 1 });
        }
        let event = new().header("h", "a\0b").bytes("a\0b").unwrap();
        assert_eq!(event.headers().get("h"), Some(&Bytes::from("a\0b")));
        assert_eq!(event.payload(), Some(&Bytes::from("a\0b")));
    }

    #[test]
    fn limits_hold_to_the_byte() {
        let at = |n: usize| Event::new("t", "T").bytes(vec![0; n]);
        assert!(at(900_000 - 2).is_ok());
        let error = at(900_000 - 1).unwrap_err().to_string();
        assert!(
            error.contains("900001 bytes") && error.contains("900000"),
            "{error}"
        );
        assert!(Event::new("t".repeat(255), "T").bytes("").is_ok());
        assert!(Event::new("t".repeat(256), "T").bytes("").is_err());
        assert!(
            Event::new("t", "T")
                .header("h", vec![0; 65_535])
                .bytes("")
                .is_ok()
        );
        assert!(
            Event::new("t", "T")
                .header("h", vec![0; 65_536])
                .bytes("")
                .is_err()
        );
    }

    #[test]
    fn a_dedup_key_is_checked_like_a_key_and_never_empty() {
        let of = |key: &str| Event::new("t", "T").dedup_key(key).tombstone();
        let event = of("command-7").unwrap();
        assert_eq!((event.dedup_key(), event.key()), (Some("command-7"), None));
        assert_eq!(Event::new("t", "T").tombstone().unwrap().dedup_key(), None);
        assert!(of(&"k".repeat(1024)).is_ok());
        for bad in ["", "a\0b", "a\nb", &"k".repeat(1025)] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains("dedup key"), "{error}");
        }
    }

    #[test]
    fn a_tombstone_is_not_an_empty_payload() {
        assert_eq!(Event::new("t", "T").tombstone().unwrap().payload(), None);
        assert_eq!(
            Event::new("t", "T").bytes("").unwrap().payload(),
            Some(&Bytes::new())
        );
        assert!(Event::new("", "T").tombstone().is_err());
        assert!(Event::new("t", "T").version(0).tombstone().is_err());
        assert!(
            Event::new("t", "T")
                .header("Event-ID", "1")
                .tombstone()
                .is_err()
        );
    }

    #[test]
    fn an_empty_key_is_a_key() {
        assert_eq!(
            Event::new("t", "T").key("").bytes("").unwrap().key(),
            Some("")
        );
        assert_eq!(Event::new("t", "T").bytes("").unwrap().key(), None);
        assert_eq!(
            Event::new("t", "T")
                .aggregate("a", "1")
                .key("k")
                .bytes("")
                .unwrap()
                .key(),
            Some("k")
        );
    }
}
