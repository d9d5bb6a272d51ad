//! What came back for a message.

use async_nats::{Message, StatusCode};
use outbox_core::Receipt;
use serde::Deserialize;

use crate::error::Refusal;

/// An answer to one message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The stream has it.
    Stored {
        /// The stream's name.
        stream: String,
        receipt: Receipt,
    },
    /// The stream, or JetStream, said no.
    Refused(Refusal),
    /// Nobody listens to the subject.
    NoResponders,
    /// Somebody else than a stream answered, which tells nothing of the stream.
    Foreign,
}

/// The form of a stream's answer.
#[derive(Deserialize)]
struct Ack {
    error: Option<Refusal>,
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

impl Answer {
    pub(crate) fn read(message: &Message) -> Self {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Self::NoResponders;
        }
        Self::parse(&message.payload)
    }

    fn parse(payload: &[u8]) -> Self {
        match serde_json::from_slice(payload) {
            Ok(Ack {
                error: Some(refusal),
                ..
            }) if refusal.code > 0 => Self::Refused(refusal),
            Ok(Ack {
                error: None,
                stream,
                seq: seq @ 1..,
                duplicate,
            }) if !stream.is_empty() => {
                // A copy is answered with the sequence of the first.
                let receipt = Receipt {
                    position: Some(format!("{stream}:{seq}")),
                    duplicate,
                };
                Self::Stored { stream, receipt }
            }
            _ => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are as servers write them.
    #[test]
    fn i3_only_a_streams_word_counts_as_stored() {
        let stored = |duplicate| Answer::Stored {
            stream: "S".to_owned(),
            receipt: Receipt {
                position: Some("S:7".to_owned()),
                duplicate,
            },
        };
        assert_eq!(Answer::parse(br#"{"stream":"S","seq":7}"#), stored(false));
        let copy = br#"{"stream":"S","domain":"d","seq":7,"duplicate":true}"#;
        assert_eq!(Answer::parse(copy), stored(true));
        for foreign in [
            "",
            "ok",
            "null",
            "7",
            "[]",
            "{}",
            r#"{"ok":true}"#,
            r#"{"stream":"S"}"#,
            r#"{"seq":7}"#,
            r#"{"stream":"","seq":7}"#,
            r#"{"error":"no"}"#,
            r#"{"error":{}}"#,
        ] {
            assert_eq!(
                Answer::parse(foreign.as_bytes()),
                Answer::Foreign,
                "{foreign}"
            );
        }
    }

    #[test]
    fn a_refusal_outranks_what_stands_beside_it() {
        let text = br#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        let Answer::Refused(refusal) = Answer::parse(text) else {
            panic!();
        };
        assert_eq!((refusal.code, refusal.err_code), (503, 10_077));
        assert_eq!(refusal.description, "maximum messages exceeded");
    }
}
