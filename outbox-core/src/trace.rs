//! The W3C trace context of an event: two headers that the relay hands on and never changes.
//!
//! Source: <https://www.w3.org/TR/trace-context/>, level 1, section 3.2.
//!
//! With the feature `otel` an event that is built without these headers takes them from the span
//! that it is built in: a `tracing` span that a `tracing-opentelemetry` layer knows, or else
//! OpenTelemetry's current context. It is captured there and never later, so that every copy carries
//! the same headers (I4) and every database keeps them. Headers that the caller gives win. Baggage is
//! not captured: what an application keeps there may be secret (I15).
//!
//! Two spans are made for such a layer, at level debug and with the target `outbox_core`. `create`,
//! of kind producer, stands for the making of one event; its context is the one that is captured.
//! `publish`, of kind client, stands for one batch on its way to the broker and *links* to the
//! contexts of its events, at most 128 of them: a batch has many causes and can't be the child of
//! each. They alone of the engine's spans have a field `otel.kind`, by which a layer's filter can tell
//! them from those for debugging, which an idle relay makes at every poll. A layer that filters them out loses them only; the context of the span around is captured
//! then.

#[cfg(feature = "otel")]
mod otel;

use crate::headers::Headers;

#[cfg(feature = "otel")]
pub(crate) use otel::{capture, link};

/// The header that names the trace and the span in which the event was made.
pub const TRACEPARENT: &str = "traceparent";

/// The header with what tracing systems add to it.
pub const TRACESTATE: &str = "tracestate";

/// The id of the trace that an event belongs to: 32 hexadecimal digits, as log lines and tracing
/// systems show it. None without a valid `traceparent`.
pub fn trace_id(headers: &Headers) -> Option<&str> {
    Some(Parent::of(headers)?.trace)
}

/// The fields of a valid `traceparent`, as hexadecimal digits.
#[cfg_attr(
    not(feature = "otel"),
    expect(dead_code, reason = "the feature links by the span")
)]
struct Parent<'a> {
    trace: &'a str,
    span: &'a str,
    flags: &'a str,
}

impl<'a> Parent<'a> {
    fn of(headers: &'a Headers) -> Option<Self> {
        let value = std::str::from_utf8(headers.get(TRACEPARENT)?).ok()?;
        let mut fields = value.splitn(5, '-');
        let mut field = |digits: usize| {
            let field = fields.next()?;
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            (field.len() == digits && field.bytes().all(is_hex)).then_some(field)
        };
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_zero = |field: &str| field.bytes().all(|byte| byte == b'0');
        // Later versions may have more fields; of the first one, `00`, these are all.
        let too_long = version == "00" && fields.next().is_some();
        let is_valid = version != "ff" && !is_zero(trace) && !is_zero(span) && !too_long;
        is_valid.then_some(Self { trace, span, flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn read(traceparent: &str) -> Option<String> {
        let mut headers = Headers::new();
        headers.push(TRACEPARENT, traceparent.to_owned());
        trace_id(&headers).map(ToOwned::to_owned)
    }

    #[test]
    fn a_trace_id_is_read_as_the_specification_says() {
        let valid = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(read(&valid).as_deref(), Some(TRACE));
        let later = format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes");
        assert_eq!(read(&later).as_deref(), Some(TRACE));
        for wrong in [
            String::new(),
            TRACE.to_owned(),
            valid.to_uppercase(),
            format!("{valid}-00"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-00f067aa0ba902b7-01", &TRACE[1..]),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!(" {valid}"),
        ] {
            assert_eq!(read(&wrong), None, "{wrong}");
        }
        assert_eq!(trace_id(&Headers::new()), None);
    }
}
