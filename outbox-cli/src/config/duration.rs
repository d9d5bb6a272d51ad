//! Durations as people write them: `500ms`, `30s`, `5m`, `1h 30m`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// Reads a duration. What was written stays out of the message: it might be a secret in the wrong
/// place.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "no duration; write a number with its unit, as in 500ms, 30s, 5m, 1h".into())
}

/// A duration with its unit. A bare number is refused: it would not say of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl de::Visitor<'_> for Written {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number with its unit as text, as in \"500ms\", \"30s\", \"5m\", \"1h\"",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                parse_duration(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Written)
    }
}
