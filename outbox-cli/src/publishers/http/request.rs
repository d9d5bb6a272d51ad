//! The headers of an event's request.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{Attribute, Binding, Encoding, Error, ErrorKind, Result, StoredEvent};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// As CloudEvents writes values in HTTP: all but printable ASCII, and space, double quote and
/// percent. Without the blanks, which servers trim, any text comes back as it was.
const VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Names that belong to HTTP's own machinery: what they say is true of one connection or of the
/// request as this program frames it.
const TAKEN: [&str; 15] = [
    "accept",
    "authorization",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// Names that this publisher writes itself, or may write one day.
const TAKEN_PREFIXES: [&str; 2] = ["outbox-", "webhook-"];

/// All headers of an event but authorization and signature.
///
/// # Errors
/// `InvalidEvent`, message scope, naming the field: what can't be a header.
pub(super) fn headers(event: &StoredEvent, encoding: &Encoding) -> Result<HeaderMap> {
    encoding.check_headers(event, Binding::Http)?;
    let mut headers = HeaderMap::with_capacity(16);
    let mut written = Ok(());
    encoding.attributes(event, Binding::Http, |attribute, name, value| {
        let value = match (attribute, encoding) {
            (Attribute::ContentType, _) => content_type(value),
            // It is encoded already.
            (_, Encoding::CloudEvents { .. }) => text(value),
            _ => text(&encoded(value)),
        };
        let value = value.and_then(|value| append(&mut headers, name, value));
        if let Err(error) = value {
            written = Err(error);
        }
    })?;
    written?;
    append(&mut headers, "outbox-topic", text(&encoded(&event.topic))?)?;
    if let Some(key) = &event.key {
        append(&mut headers, "outbox-key", text(&encoded(key))?)?;
    }
    if event.payload.is_none() {
        append(&mut headers, "outbox-null", HeaderValue::from_static("1"))?;
    }
    for (name, value) in event.headers.iter() {
        let lower = name.to_ascii_lowercase();
        let begins = TAKEN_PREFIXES
            .iter()
            .any(|prefix| lower.starts_with(prefix));
        if begins || TAKEN.contains(&lower.as_str()) {
            let what = "a header has a name that HTTP or this publisher writes itself: rename it";
            return Err(refused(what).context("header", name));
        }
        append(&mut headers, name, user_value(value)?)?;
    }
    Ok(headers)
}

fn encoded(value: &str) -> String {
    utf8_percent_encode(value, VALUE).to_string()
}

fn text(value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| refused("a value can't be a header"))
}

/// The one attribute that HTTP itself reads, so it stands as it is.
fn content_type(value: &str) -> Result<HeaderValue> {
    if !is_plain(value.as_bytes()) {
        return Err(refused("the content type can't be a header of HTTP"));
    }
    text(value)
}

/// Text that HTTP carries stands as it is; any other value is a byte sequence of RFC 9651, which is
/// base64 between colons, and so is text that looks like one.
fn user_value(value: &[u8]) -> Result<HeaderValue> {
    let is_sequence = value.len() > 1 && value.starts_with(b":") && value.ends_with(b":");
    let value = if is_plain(value) && !is_sequence {
        HeaderValue::from_bytes(value)
    } else {
        HeaderValue::try_from(format!(":{}:", STANDARD.encode(value)).into_bytes())
    };
    value.map_err(|_| refused("a value can't be a header"))
}

/// Printable ASCII with blanks only inside: what every server and proxy leaves as it is.
fn is_plain(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t');
    value.iter().all(is_text) && !is_blank(value.first()) && !is_blank(value.last())
}

fn append(headers: &mut HeaderMap, name: &str, value: HeaderValue) -> Result<()> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        refused(
            "a header's name can't be one of HTTP: it takes letters, digits and !#$%&'*+-.^_`|~",
        )
        .context("header", name)
    })?;
    headers
        .try_append(parsed, value)
        .map(drop)
        .map_err(|_| refused("there are more headers than a request can have"))
}

fn refused(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidEvent, "encode event", what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_json::tests::stored;

    fn event(name: &str, value: &[u8]) -> StoredEvent {
        let mut event = stored("text/plain", Some(b"x"));
        event.headers = [(name.to_owned(), value.to_vec())].into_iter().collect();
        event
    }

    fn value(bytes: &[u8]) -> HeaderValue {
        headers(&event("h", bytes), &Encoding::Plain).unwrap()["h"].clone()
    }

    #[test]
    fn i10_values_are_text_or_a_byte_sequence() {
        for plain in ["", "a", "a b\tc", ":", "a:", "k=v;\"q\"%41"] {
            assert_eq!(value(plain.as_bytes()), plain);
        }
        for (bytes, sequence) in [
            (&b" a"[..], ":IGE=:"),
            (b"a\t", ":YQk=:"),
            (b"::", ":Ojo=:"),
            (b":YQ==:", ":OllRPT06:"),
            (b"\r\nx: y", ":DQp4OiB5:"),
            ("é".as_bytes(), ":w6k=:"),
            (&[0, 255, 127], ":AP9/:"),
        ] {
            assert_eq!(value(bytes), sequence, "{bytes:?}");
        }
    }

    #[test]
    fn names_of_http_and_of_the_publisher_are_refused() {
        for name in TAKEN.into_iter().chain([
            "Host",
            "Content-Length",
            "outbox-key",
            "Webhook-Signature",
            "event-id",
            "with blank",
            "größe",
            "a:b",
            "",
            "x\r\ny",
        ]) {
            let error = headers(&event(name, b"x"), &Encoding::Plain).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEvent, "{name}");
            assert_eq!(error.failure_scope(), outbox_core::Scope::Message);
        }
        let mut wrong = event("h", b"x");
        wrong.content_type = Some("text/größe".to_owned());
        let error = headers(&wrong, &Encoding::Plain).unwrap_err();
        assert!(error.to_string().contains("content type"), "{error}");
    }

    #[test]
    fn i10_every_encoding_names_the_attributes_and_only_escapes_once() {
        let mut event = event("Twice", b"1");
        event.headers.push("twice", "2");
        event.event_type = "Größe 1%".to_owned();
        event.key = Some("k 1".to_owned());
        event.payload = None;
        let source = "/shop".to_owned();
        for (encoding, id, kind) in [
            (Encoding::Plain, "event-id", "event-type"),
            (Encoding::Debezium, "id", "eventtype"),
            (Encoding::CloudEvents { source }, "ce-id", "ce-type"),
        ] {
            let headers = headers(&event, &encoding).unwrap();
            assert_eq!(headers[id], event.id.to_string());
            assert_eq!(headers[kind], "Gr%C3%B6%C3%9Fe%201%25");
            assert_eq!(headers["content-type"], "text/plain");
            assert_eq!(headers["outbox-key"], "k%201");
            assert_eq!(headers["outbox-null"], "1");
            let twice: Vec<_> = headers.get_all("twice").iter().collect();
            assert_eq!(twice, ["1", "2"]);
        }
    }
}
