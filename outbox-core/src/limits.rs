//! What an event may hold, checked before any SQL is sent, and what a setting may be.

use std::time::Duration;

/// No setting is longer: points in time are a sum of now and a setting, and must not overflow.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Upper bounds of an event, in bytes. Checked when the event is built, so that a business
/// transaction never breaks on one (I13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Topic, event type, aggregate type, content type and each header name. Default 255: the
    /// shortest name limit of the supported brokers (AMQP's short string).
    pub name_bytes_max: usize,
    /// Key and aggregate id. Default 1,024.
    pub key_bytes_max: usize,
    /// All header names and values together. Default 64 KiB.
    pub header_bytes_max: usize,
    /// Payload, headers and names together. Default 900,000: Kafka and NATS count headers within
    /// their default of 1 MB, and the event's own headers need room beside the user's.
    pub event_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            name_bytes_max: 255,
            key_bytes_max: 1024,
            header_bytes_max: 64 * 1024,
            event_bytes_max: 900_000,
        }
    }
}

/// Why an event can't be built. Each message names the field, the value's size and the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A field that must hold text is empty.
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A field is longer than its limit.
    TooLong {
        /// The field.
        field: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A name holds a control character (NUL, CR, LF …), which line protocols and SQL text refuse.
    ControlCharacter {
        /// The field.
        field: &'static str,
        /// Where, in bytes from the start.
        at: usize,
    },
    /// A header uses a name that the wire mapping writes itself.
    ReservedHeader {
        /// The header's name.
        name: String,
    },
    /// The version of an event type starts at 1.
    VersionZero,
    /// The payload can't be written as JSON.
    Json(String),
}

impl std::fmt::Display for InvalidEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty { field } => write!(f, "{field} is empty; give it a value"),
            Self::TooLong {
                field,
                bytes,
                limit,
            } => write!(
                f,
                "{field} is {bytes} bytes long and the limit is {limit}; shorten it or raise the limit"
            ),
            Self::ControlCharacter { field, at } => write!(
                f,
                "{field} holds a control character at byte {at}; remove it"
            ),
            Self::ReservedHeader { name } => write!(
                f,
                "header {name:?} is written by the outbox itself; choose another name"
            ),
            Self::VersionZero => write!(f, "event version is 0; versions start at 1"),
            Self::Json(reason) => write!(f, "payload can't be written as JSON: {reason}"),
        }
    }
}

impl std::error::Error for InvalidEvent {}

pub(crate) fn check_name(
    field: &'static str,
    text: &str,
    limit: usize,
) -> Result<(), InvalidEvent> {
    if text.is_empty() {
        return Err(InvalidEvent::Empty { field });
    }
    check_text(field, text, limit)
}

/// Like a name, but may be empty: an empty key is a key (it is not "no key").
pub(crate) fn check_text(
    field: &'static str,
    text: &str,
    limit: usize,
) -> Result<(), InvalidEvent> {
    if text.len() > limit {
        return Err(InvalidEvent::TooLong {
            field,
            bytes: text.len(),
            limit,
        });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(InvalidEvent::ControlCharacter { field, at }),
        None => Ok(()),
    }
}
