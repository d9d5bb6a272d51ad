//! User headers: ordered, duplicates kept, values are bytes.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, error::Category, json, value::RawValue};

use crate::error::{Error, ErrorKind, Result};

/// Headers of an event in the order in which they were added. Names may repeat; values are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, Bytes)>);

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header behind the others, also when the name is there already.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// The first value under this name.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// All headers in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many headers there are, duplicates counted.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values together, in bytes.
    pub fn byte_len(&self) -> usize {
        self.0.iter().map(|(n, v)| n.len() + v.len()).sum()
    }

    /// The exact form that stores keep: an array of `[name, "text"]` or `[name, {"b64": "…"}]`
    /// where the value is no UTF-8 or holds NUL, which jsonb can't. Order and duplicates are kept.
    pub fn to_json(&self) -> Value {
        self.iter()
            .map(|(name, value)| match std::str::from_utf8(value) {
                Ok(text) if !text.contains('\0') => json!([name, text]),
                _ => json!([name, { "b64": STANDARD.encode(value) }]),
            })
            .collect()
    }

    /// Reads the exact form, or the object form of SQL writers (`{"name": "text", …}`; numbers and
    /// booleans are taken as the text that stands there, to the last digit).
    ///
    /// # Errors
    /// `InvalidEvent`, message scope, when the JSON has neither form: the event can't be published
    /// as written and belongs to the dead letters.
    pub fn parse_json(json: &str) -> Result<Self> {
        let pairs = match json.trim_start().as_bytes().first() {
            Some(b'{') => serde_json::from_str(json).map(|Object(pairs)| pairs),
            Some(b'[') => serde_json::from_str(json),
            Some(b'n') => serde_json::from_str(json).map(|()| Vec::new()),
            _ => {
                return Err(malformed(
                    "headers are neither an object nor an array of pairs",
                ));
            }
        };
        let pairs: Vec<(String, &RawValue)> = pairs.map_err(|error| match error.classify() {
            Category::Data => malformed("an entry of headers is not a pair [name, value]"),
            _ => malformed("headers can't be read as JSON"),
        })?;
        pairs
            .into_iter()
            .map(|(name, value)| {
                let value = header_value(&name, value.get())?;
                Ok((name, value))
            })
            .collect::<Result<_>>()
            .map(Self)
    }

    /// As [`parse_json`](Self::parse_json), of JSON that is parsed already; numbers then have the
    /// digits that the parser left.
    ///
    /// # Errors
    /// The same.
    pub fn from_json(json: &Value) -> Result<Self> {
        Self::parse_json(&json.to_string())
    }
}

/// The members of a JSON object in their order, as they stand.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Self)
    }
}

impl<N: Into<String>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
        )
    }
}

/// `json` is one JSON value.
fn header_value(name: &str, json: &str) -> Result<Bytes> {
    let wrong = |what| malformed(what).context("header", name);
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(json)
            .map(Bytes::from)
            .map_err(|_| wrong("a header's value is no text")),
        Some(b'-' | b'0'..=b'9' | b't' | b'f') => Ok(Bytes::copy_from_slice(json.as_bytes())),
        Some(b'{') => {
            let members: BTreeMap<String, String> = serde_json::from_str(json).unwrap_or_default();
            let text = members.get("b64").filter(|_| members.len() == 1);
            let text = text.ok_or_else(|| wrong("a header's value is an object without b64"))?;
            STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| wrong("a header's b64 is no base64").source(error))
        }
        _ => Err(wrong("a header's value is neither text nor {\"b64\": …}")),
    }
}

fn malformed(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidEvent, "read headers", what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn i10_headers_survive_json(pairs in proptest::collection::vec((".*", proptest::collection::vec(any::<u8>(), 0..20)), 0..8)) {
            let headers: Headers = pairs.into_iter().collect();
            prop_assert_eq!(Headers::from_json(&headers.to_json()).unwrap(), headers);
        }
    }

    #[test]
    fn sql_writers_may_use_an_object() {
        let headers = Headers::from_json(&json!({"a": "x", "n": 12, "b": true})).unwrap();
        assert_eq!(headers.get("a").unwrap(), "x");
        assert_eq!(headers.get("n").unwrap(), "12");
        assert_eq!(headers.get("b").unwrap(), "true");
    }

    #[test]
    fn i10_numbers_keep_every_digit() {
        let json = r#" {"n": 123456789012345678901234567890, "p": 1.10, "e": 1e400, "p": -0} "#;
        let headers = Headers::parse_json(json).unwrap();
        let values: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name, std::str::from_utf8(value).unwrap()))
            .collect();
        let expected = [
            ("n", "123456789012345678901234567890"),
            ("p", "1.10"),
            ("e", "1e400"),
            ("p", "-0"),
        ];
        assert_eq!(values, expected);
        let pairs = Headers::parse_json(r#"[["n", 1.10], ["t", "\u00e9"]]"#).unwrap();
        assert_eq!(pairs.get("n").unwrap(), "1.10");
        assert_eq!(pairs.get("t").unwrap(), "é");
        assert!(Headers::parse_json("null").unwrap().is_empty());
    }

    #[test]
    fn broken_json_is_refused() {
        for bad in [
            "",
            "{",
            "[",
            "nul",
            "{} x",
            r#"{"a": }"#,
            r#"["a", 1]"#,
            r#"[["a", 1, 2]]"#,
        ] {
            let error = Headers::parse_json(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEvent, "{bad}");
        }
    }

    #[test]
    fn other_json_is_refused() {
        for bad in [
            json!("x"),
            json!(1),
            json!([["a"]]),
            json!([1]),
            json!({"a": [1]}),
            json!({"a": {"b64": "%"}}),
            json!({"a": null}),
        ] {
            assert_eq!(
                Headers::from_json(&bad).unwrap_err().kind(),
                ErrorKind::InvalidEvent,
                "{bad}"
            );
        }
    }
}
