//! What stands beside the payload on the wire, and under which names: the same for every broker.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Deserialize;
use time::{UtcOffset, format_description::well_known::Rfc3339};
use uuid::fmt::Hyphenated;

use crate::{
    error::{Error, ErrorKind, Result},
    stored_event::StoredEvent,
};

/// How an event's attributes are named for consumers. The payload is never wrapped.
///
/// In a configuration: `encoding = "plain"`, `"debezium"`, or
/// `encoding = { cloudevents = { source = "/shop/orders" } }`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Encoding {
    /// `event-id`, `event-type`, `event-version`, `aggregate-type`, `aggregate-id`,
    /// `content-type`, `created-at`.
    #[default]
    Plain,
    /// [CloudEvents 1.0](https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md) in
    /// binary mode: `id`, `source`, `specversion`, `type`, `time`, `subject` (the aggregate id) and
    /// the extensions `partitionkey` (the key), `aggregatetype` and `eventversion`, each behind the
    /// prefix of its [`Binding`]; and `content-type` without one.
    CloudEvents {
        /// `source`: a URI reference that names the service whose events these are.
        source: String,
    },
    /// `id` and `eventType`, as Debezium's outbox event router writes them; everything else as
    /// [`Plain`](Self::Plain). Consumers need no change when a team comes from there.
    Debezium,
}

/// How a protocol writes the attributes of CloudEvents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// `ce_id`: Kafka, and protocols for which nothing is defined.
    Kafka,
    /// `ce-id`, what is no printable ASCII percent-encoded: HTTP and NATS.
    Http,
    /// `cloudEvents:id`: AMQP.
    Amqp,
}

/// What an attribute tells, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// The event's id.
    Id,
    /// The event's type.
    Type,
    /// The schema version of the type.
    Version,
    /// What kind of thing it happened to.
    AggregateType,
    /// Which one it happened to.
    AggregateId,
    /// The media type of the payload.
    ContentType,
    /// When the event was inserted: RFC 3339, UTC.
    CreatedAt,
    /// What orders it; only where the encoding names it.
    Key,
    /// The version of the CloudEvents specification.
    SpecVersion,
    /// The service whose events these are.
    Source,
}

const ATTRIBUTES: [Attribute; 10] = [
    Attribute::Id,
    Attribute::Type,
    Attribute::Version,
    Attribute::AggregateType,
    Attribute::AggregateId,
    Attribute::ContentType,
    Attribute::CreatedAt,
    Attribute::Key,
    Attribute::SpecVersion,
    Attribute::Source,
];

/// What CloudEvents percent-encodes in a header of HTTP: all but printable ASCII, and space,
/// double quote and percent.
const HTTP_VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

impl Encoding {
    /// Checks that a source is there where one is needed.
    ///
    /// # Errors
    /// `Configuration`.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::CloudEvents { source } if source.is_empty() => Err(Error::new(
                ErrorKind::Configuration,
                "configure",
                "CloudEvents need a source that is not empty: a URI reference, as /shop/orders",
            )),
            Self::Plain | Self::CloudEvents { .. } | Self::Debezium => Ok(()),
        }
    }

    /// Calls `put` with each attribute that the event has: what it is, its name and its value.
    ///
    /// # Errors
    /// `InvalidEvent`, message scope: the time of creation is beyond the years 0 to 9999.
    pub fn attributes(
        &self,
        event: &StoredEvent,
        binding: Binding,
        mut put: impl FnMut(Attribute, &'static str, &str),
    ) -> Result<()> {
        let created_at = event.created_at.to_offset(UtcOffset::UTC).format(&Rfc3339);
        let created_at = created_at
            .map_err(|_| refused("the time of creation is beyond the years 0 to 9999"))?;
        let version = event.event_version.to_string();
        let mut id = [0; Hyphenated::LENGTH];
        let id: &str = event.id.hyphenated().encode_lower(&mut id);
        let source = match self {
            Self::CloudEvents { source } => Some(source.as_str()),
            Self::Plain | Self::Debezium => None,
        };
        let values = [
            (Attribute::Id, Some(id)),
            (Attribute::SpecVersion, source.and(Some("1.0"))),
            (Attribute::Source, source),
            (Attribute::Type, Some(event.event_type.as_str())),
            (Attribute::Version, Some(&version)),
            (Attribute::AggregateType, event.aggregate_type.as_deref()),
            (Attribute::AggregateId, event.aggregate_id.as_deref()),
            (Attribute::ContentType, event.content_type.as_deref()),
            (Attribute::CreatedAt, Some(&created_at)),
            (Attribute::Key, event.key.as_deref()),
        ];
        for (attribute, value) in values {
            let Some((name, value)) = self.name(attribute, binding).zip(value) else {
                continue;
            };
            // An attribute of CloudEvents is absent or not empty.
            if value.is_empty() && source.is_some() {
                continue;
            }
            put(attribute, name, &self.value(attribute, binding, value));
        }
        Ok(())
    }

    /// For brokers that put user headers beside the attributes: that none has a name which the
    /// encoding writes itself (compared without regard to case), since a consumer could not tell
    /// which is which.
    ///
    /// # Errors
    /// `InvalidEvent`, message scope, naming the header.
    pub fn check_headers(&self, event: &StoredEvent, binding: Binding) -> Result<()> {
        let taken = |header: &str| {
            let mut names = ATTRIBUTES.iter().filter_map(|a| self.name(*a, binding));
            names.any(|name| name.eq_ignore_ascii_case(header))
        };
        match event.headers.iter().find(|(name, _)| taken(name)) {
            None => Ok(()),
            Some((name, _)) => Err(refused(
                "a header has a name that the encoding writes itself: rename it",
            )
            .context("header", name)),
        }
    }

    fn name(&self, attribute: Attribute, binding: Binding) -> Option<&'static str> {
        use Attribute as A;
        let cloud = |names: [&'static str; 3]| {
            Some(match binding {
                Binding::Kafka => names[0],
                Binding::Http => names[1],
                Binding::Amqp => names[2],
            })
        };
        match (self, attribute) {
            (_, A::ContentType) => Some("content-type"),
            (Self::CloudEvents { .. }, attribute) => cloud(match attribute {
                A::Id => ["ce_id", "ce-id", "cloudEvents:id"],
                A::Type => ["ce_type", "ce-type", "cloudEvents:type"],
                A::Version => [
                    "ce_eventversion",
                    "ce-eventversion",
                    "cloudEvents:eventversion",
                ],
                A::AggregateType => [
                    "ce_aggregatetype",
                    "ce-aggregatetype",
                    "cloudEvents:aggregatetype",
                ],
                A::AggregateId => ["ce_subject", "ce-subject", "cloudEvents:subject"],
                A::CreatedAt => ["ce_time", "ce-time", "cloudEvents:time"],
                A::Key => [
                    "ce_partitionkey",
                    "ce-partitionkey",
                    "cloudEvents:partitionkey",
                ],
                A::SpecVersion => [
                    "ce_specversion",
                    "ce-specversion",
                    "cloudEvents:specversion",
                ],
                A::Source => ["ce_source", "ce-source", "cloudEvents:source"],
                A::ContentType => return None,
            }),
            (Self::Debezium, A::Id) => Some("id"),
            (Self::Debezium, A::Type) => Some("eventType"),
            (Self::Plain, A::Id) => Some("event-id"),
            (Self::Plain, A::Type) => Some("event-type"),
            (_, A::Version) => Some("event-version"),
            (_, A::AggregateType) => Some("aggregate-type"),
            (_, A::AggregateId) => Some("aggregate-id"),
            (_, A::CreatedAt) => Some("created-at"),
            (_, A::Key | A::SpecVersion | A::Source) => None,
        }
    }

    fn value<'v>(&self, attribute: Attribute, binding: Binding, value: &'v str) -> Cow<'v, str> {
        match (self, binding) {
            (Self::CloudEvents { .. }, Binding::Http) if attribute != Attribute::ContentType => {
                utf8_percent_encode(value, HTTP_VALUE).into()
            }
            _ => Cow::Borrowed(value),
        }
    }
}

fn refused(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidEvent, "encode event", what)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;
    use uuid::Uuid;

    use super::*;
    use crate::{event::Event, store::Position};

    fn event() -> StoredEvent {
        let event = Event::new("orders", "OrderPlaced")
            .aggregate("order", "4711")
            .key("k 1")
            .version(3)
            .header("a", "x")
            .json(&1)
            .unwrap();
        let at = datetime!(2026-02-03 04:05:06.7 +02:00);
        StoredEvent {
            id: Uuid::from_u128(7),
            ..StoredEvent::from_event(&event, Position(1), at)
        }
    }

    fn written(encoding: &Encoding, event: &StoredEvent, binding: Binding) -> Vec<String> {
        let mut lines = Vec::new();
        let put = |_, name: &str, value: &str| lines.push(format!("{name}={value}"));
        encoding.attributes(event, binding, put).unwrap();
        lines
    }

    fn cloud_events() -> Encoding {
        Encoding::CloudEvents {
            source: "/shop/ord ers".to_owned(),
        }
    }

    const ID: &str = "00000000-0000-0000-0000-000000000007";

    #[test]
    fn i10_plain_and_debezium_write_every_attribute() {
        let rest = [
            "event-version=3",
            "aggregate-type=order",
            "aggregate-id=4711",
            "content-type=application/json",
            "created-at=2026-02-03T02:05:06.7Z",
        ];
        for (encoding, first) in [
            (
                Encoding::Plain,
                [
                    format!("event-id={ID}"),
                    "event-type=OrderPlaced".to_owned(),
                ],
            ),
            (
                Encoding::Debezium,
                [format!("id={ID}"), "eventType=OrderPlaced".to_owned()],
            ),
        ] {
            for binding in [Binding::Kafka, Binding::Http, Binding::Amqp] {
                let lines = written(&encoding, &event(), binding);
                assert_eq!(lines[..2], first);
                assert_eq!(lines[2..], rest);
            }
        }
    }

    #[test]
    fn i10_cloud_events_has_the_prefix_of_the_protocol() {
        for (binding, prefix, source, key) in [
            (Binding::Kafka, "ce_", "/shop/ord ers", "k 1"),
            (Binding::Http, "ce-", "/shop/ord%20ers", "k%201"),
            (Binding::Amqp, "cloudEvents:", "/shop/ord ers", "k 1"),
        ] {
            let expected = [
                format!("{prefix}id={ID}"),
                format!("{prefix}specversion=1.0"),
                format!("{prefix}source={source}"),
                format!("{prefix}type=OrderPlaced"),
                format!("{prefix}eventversion=3"),
                format!("{prefix}aggregatetype=order"),
                format!("{prefix}subject=4711"),
                "content-type=application/json".to_owned(),
                format!("{prefix}time=2026-02-03T02:05:06.7Z"),
                format!("{prefix}partitionkey={key}"),
            ];
            assert_eq!(written(&cloud_events(), &event(), binding), expected);
        }
    }

    /// The examples of the HTTP binding's text.
    #[test]
    fn values_in_http_are_percent_encoded() {
        let mut event = event();
        event.aggregate_id = Some("Euro € 😀 \"100%\"".to_owned());
        let lines = written(&cloud_events(), &event, Binding::Http);
        let expected = "ce-subject=Euro%20%E2%82%AC%20%F0%9F%98%80%20%22100%25%22";
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }

    #[test]
    fn what_is_absent_is_not_written() {
        let bare = StoredEvent {
            aggregate_type: None,
            aggregate_id: None,
            content_type: None,
            key: Some(String::new()),
            ..event()
        };
        assert_eq!(written(&Encoding::Plain, &bare, Binding::Kafka).len(), 4);
        let lines = written(&cloud_events(), &bare, Binding::Kafka);
        assert_eq!(lines.len(), 6, "an empty attribute is none: {lines:?}");
    }

    #[test]
    fn headers_that_would_stand_twice_are_refused() {
        for (encoding, name) in [
            (Encoding::Debezium, "ID"),
            (Encoding::Debezium, "eventtype"),
            (cloud_events(), "ce_Source"),
        ] {
            let mut event = event();
            event.headers.push(name, "x");
            let error = encoding.check_headers(&event, Binding::Kafka).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEvent);
            assert!(
                error
                    .to_string()
                    .to_lowercase()
                    .contains(&name.to_lowercase()),
                "{error}"
            );
            Encoding::Plain
                .check_headers(&event, Binding::Kafka)
                .unwrap();
        }
        let mut early = event();
        early.created_at = datetime!(-0001-01-01 00:00 UTC);
        assert!(
            Encoding::Plain
                .attributes(&early, Binding::Kafka, |_, _, _| ())
                .is_err()
        );
    }

    #[test]
    fn settings_are_read_and_checked() {
        let read = |json: &str| serde_json::from_str::<Encoding>(json);
        assert_eq!(read(r#""plain""#).unwrap(), Encoding::Plain);
        assert_eq!(read(r#""debezium""#).unwrap(), Encoding::Debezium);
        let source = |text: &str| format!(r#"{{"cloudevents": {{"source": "{text}"}}}}"#);
        assert_eq!(read(&source("/shop/ord ers")).unwrap(), cloud_events());
        cloud_events().validate().unwrap();
        let text = source("");
        let nameless = read(&text).unwrap();
        let error = nameless.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        for wrong in [r#""cloudevents""#, r#""json""#, r#"{"cloudevents": {}}"#] {
            read(wrong).unwrap_err();
        }
    }
}
