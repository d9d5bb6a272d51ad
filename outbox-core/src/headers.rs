//! User headers: ordered, duplicates kept, values are bytes.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

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
    /// booleans are taken as their JSON text).
    ///
    /// # Errors
    /// `InvalidEvent`, message scope, when the JSON has neither form: the event can't be published
    /// as written and belongs to the dead letters.
    pub fn from_json(json: &Value) -> Result<Self> {
        match json {
            Value::Null => Ok(Self::new()),
            Value::Object(map) => map
                .iter()
                .map(|(name, value)| Ok((name.clone(), header_value(name, value)?)))
                .collect::<Result<_>>()
                .map(Self),
            Value::Array(items) => items.iter().map(pair).collect::<Result<_>>().map(Self),
            _ => Err(malformed(
                "headers are neither an object nor an array of pairs",
            )),
        }
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

fn pair(item: &Value) -> Result<(String, Bytes)> {
    match item.as_array().map(Vec::as_slice) {
        Some([Value::String(name), value]) => Ok((name.clone(), header_value(name, value)?)),
        _ => Err(malformed("an entry of headers is not a pair [name, value]")),
    }
}

fn header_value(name: &str, value: &Value) -> Result<Bytes> {
    match value {
        Value::String(text) => Ok(Bytes::from(text.clone())),
        Value::Number(_) | Value::Bool(_) => Ok(Bytes::from(value.to_string())),
        Value::Object(map) if map.len() == 1 => match map.get("b64") {
            Some(Value::String(text)) => STANDARD.decode(text).map(Bytes::from).map_err(|e| {
                malformed("a header's b64 is no base64")
                    .context("header", name)
                    .source(e)
            }),
            _ => {
                Err(malformed("a header's value is an object without b64").context("header", name))
            }
        },
        _ => Err(
            malformed("a header's value is neither text nor {\"b64\": …}").context("header", name),
        ),
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
