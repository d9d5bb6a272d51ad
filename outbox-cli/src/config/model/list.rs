//! Lists, which the environment writes as text with commas.

use outbox_core::TopicPattern;
use serde::{Deserialize, Deserializer, de};

/// Reads a pattern. What was written stays out of the message: it might be a secret in the wrong
/// place.
fn pattern<E: de::Error>(text: &str) -> Result<TopicPattern, E> {
    text.parse()
        .map_err(|_| E::custom("no topic pattern; write a name, a prefix with * at its end, or *"))
}

/// A topic pattern of the core, read from text.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(pub(crate) TopicPattern);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        pattern(&text).map(Self)
    }
}

/// Names: a list, or, for the environment, text with commas.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "nats"),
    expect(dead_code, reason = "there is no publisher to read it")
)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list(
            deserializer,
            "a list of names, as in [\"ORDERS\", \"USERS\"]",
            |text| Ok(text.to_owned()),
        )
        .map(Self)
    }
}

/// Topic patterns: a list, or, for the environment, text with commas.
#[derive(Debug, Clone)]
pub(crate) struct Topics(pub(crate) Vec<TopicPattern>);

impl<'de> Deserialize<'de> for Topics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a list of topic patterns, as in [\"orders.*\", \"users\"]";
        list(deserializer, expected, pattern).map(Self)
    }
}

/// A list of texts that are read one by one; `read` must not repeat what was written.
fn list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    read: impl Fn(&str) -> Result<T, D::Error>,
) -> Result<Vec<T>, D::Error> {
    struct Visitor(&'static str);
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(text.split(',').map(|part| part.trim().to_owned()).collect())
        }
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut texts = Vec::new();
            while let Some(text) = seq.next_element()? {
                texts.push(text);
            }
            Ok(texts)
        }
    }
    let texts = deserializer.deserialize_any(Visitor(expected))?;
    texts.iter().map(|text| read(text)).collect()
}
