//! The one place where HTTP's status codes become the project's outcomes.

use std::time::{Duration, SystemTime};

use outbox_core::{Error, ErrorKind, Outcome, Scope};
use reqwest::{
    StatusCode,
    header::{DATE, HeaderMap, RETRY_AFTER},
};

use super::failure::PUBLISH;

/// Of a body that is no success, so much is shown.
const EXCERPT_CHARS: usize = 200;

/// An excerpt is looked up in the payload by pieces of this many bytes: any run of the payload that is
/// twice as long, but for one byte, holds a whole piece.
const PIECE: usize = 8;

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    /// The beginning of the body.
    pub(super) excerpt: String,
}

impl Answer {
    /// The table: status → outcome, kind, scope.
    ///
    /// What a gateway or a failing handler says (500, 502, 504) leaves open whether the event had
    /// its effect before: in doubt, which never says "did not land" of what did.
    pub(super) fn outcome(self) -> Outcome {
        use ErrorKind as K;
        use Scope::{Destination, Message};
        type Of = fn(Error) -> Outcome;
        let rejected: Of = Outcome::Rejected;
        let failed: Of = Outcome::Failed;
        let unknown: Of = Outcome::Unknown;
        let (outcome, kind, scope, what) = match self.status.as_u16() {
            200..=299 => return Outcome::delivered(),
            300..=399 => (
                failed,
                K::Configuration,
                Destination,
                "redirects are not followed: set `url` to where it leads",
            ),
            401 => (
                failed,
                K::Unauthenticated,
                Destination,
                "user and password are not accepted, or missing",
            ),
            407 | 511 => (
                failed,
                K::Unauthenticated,
                Destination,
                "a proxy in between wants a sign-in",
            ),
            403 => (failed, K::Unauthorized, Destination, "not permitted"),
            404 | 405 | 410 | 414 | 421 | 501 => (
                failed,
                K::Configuration,
                Destination,
                "nothing takes a POST there: correct `url`",
            ),
            408 => (
                failed,
                K::Timeout,
                Destination,
                "the request did not arrive in time",
            ),
            413 | 431 => (rejected, K::TooLarge, Message, "too large for the server"),
            425 => (failed, K::Refused, Message, "too early"),
            426 | 505 => (
                failed,
                K::Protocol,
                Destination,
                "another version of HTTP is wanted",
            ),
            429 => (failed, K::Throttled, Destination, "too many requests"),
            400..=499 => (rejected, K::Refused, Message, "refused"),
            502 => (
                unknown,
                K::Unavailable,
                Destination,
                "the gateway got no answer that it understands",
            ),
            503 => (failed, K::Unavailable, Destination, "not available"),
            504 => (
                unknown,
                K::Timeout,
                Destination,
                "the gateway got no answer in time",
            ),
            507 => (failed, K::OutOfSpace, Destination, "no room to store it"),
            500..=599 => (unknown, K::Refused, Message, "the server failed on it"),
            _ => (unknown, K::Protocol, Destination, "no status of HTTP"),
        };
        let mut error = Error::new(kind, PUBLISH, what).scope(scope);
        error = error.context("code", self.status.as_u16());
        if !self.excerpt.is_empty() {
            error = error.context("answer", self.excerpt);
        }
        if let Some(delay) = self.retry_after {
            error = error.retry_after(delay);
        }
        outcome(error)
    }
}

/// When the server wants to be asked again: seconds, or a date, which is taken against the server's
/// own clock where it tells it.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let wanted = text(RETRY_AFTER)?.trim();
    if let Ok(seconds) = wanted.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = httpdate::parse_http_date(wanted).ok()?;
    let server = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    Some(
        then.duration_since(server.unwrap_or(now))
            .unwrap_or_default(),
    )
}

/// The beginning of a body; withheld when it repeats a secret or what was sent (I15).
pub(super) fn excerpt(body: &[u8], secrets: &[String], payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    // Quoted in JSON, a repetition has a backslash here and there.
    let unquoted = text.replace('\\', "");
    let shown: String = text.trim().chars().take(EXCERPT_CHARS).collect();
    let is_secret = secrets
        .iter()
        .any(|secret| text.contains(secret.as_str()) || unquoted.contains(secret.as_str()));
    if is_secret || repeats(&shown.replace('\\', ""), payload) {
        return "withheld: it repeats what was sent".to_owned();
    }
    shown
}

fn repeats(shown: &str, payload: &[u8]) -> bool {
    let within = |all: &[u8], part: &[u8]| all.windows(part.len()).any(|window| window == part);
    let shown = shown.as_bytes();
    let is_whole = payload.len() >= PIECE / 2 && within(shown, payload);
    is_whole
        || shown
            .chunks_exact(PIECE)
            .any(|piece| within(payload, piece))
}

#[cfg(test)]
mod tests {
    use outbox_core::{Directive, classify};
    use reqwest::header::HeaderValue;

    use super::*;

    fn outcome(status: u16) -> Outcome {
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: None,
            excerpt: String::new(),
        };
        answer.outcome()
    }

    #[rustfmt::skip]
    const TABLE: &[(&[u16], &str, ErrorKind, Scope, Directive)] = &[
        (&[300, 301, 302, 304, 307, 308], "failed", ErrorKind::Configuration, Scope::Destination, Directive::PauseDestination),
        (&[401, 407, 511], "failed", ErrorKind::Unauthenticated, Scope::Destination, Directive::PauseDestination),
        (&[403], "failed", ErrorKind::Unauthorized, Scope::Destination, Directive::PauseDestination),
        (&[404, 405, 410, 414, 421, 501], "failed", ErrorKind::Configuration, Scope::Destination, Directive::PauseDestination),
        (&[408], "failed", ErrorKind::Timeout, Scope::Destination, Directive::PauseDestination),
        (&[413, 431], "rejected", ErrorKind::TooLarge, Scope::Message, Directive::DeadLetter),
        (&[425], "failed", ErrorKind::Refused, Scope::Message, Directive::Retry),
        (&[426, 505], "failed", ErrorKind::Protocol, Scope::Destination, Directive::PauseDestination),
        (&[429], "failed", ErrorKind::Throttled, Scope::Destination, Directive::PauseDestination),
        (&[400, 402, 406, 409, 411, 412, 415, 416, 417, 418, 422, 423, 424, 428, 451, 499], "rejected", ErrorKind::Refused, Scope::Message, Directive::DeadLetter),
        (&[500, 506, 508, 510, 520, 599], "unknown", ErrorKind::Refused, Scope::Message, Directive::Retry),
        (&[502], "unknown", ErrorKind::Unavailable, Scope::Destination, Directive::PauseDestination),
        (&[503], "failed", ErrorKind::Unavailable, Scope::Destination, Directive::PauseDestination),
        (&[504], "unknown", ErrorKind::Timeout, Scope::Destination, Directive::PauseDestination),
        (&[507], "failed", ErrorKind::OutOfSpace, Scope::Destination, Directive::PauseDestination),
        (&[600, 999, 100], "unknown", ErrorKind::Protocol, Scope::Destination, Directive::PauseDestination),
    ];

    #[test]
    fn each_status_has_its_outcome_kind_and_scope() {
        for status in 200..300 {
            assert!(outcome(status).is_delivered(), "{status}");
        }
        for (statuses, name, kind, scope, directive) in TABLE {
            for status in *statuses {
                let outcome = outcome(*status);
                let error = outcome.error().unwrap();
                assert_eq!(outcome.as_str(), *name, "{status}");
                assert_eq!(
                    (error.kind(), error.failure_scope()),
                    (*kind, *scope),
                    "{status}"
                );
                assert_eq!(classify(&outcome), *directive, "{status}");
                assert!(
                    error.to_string().contains(&format!("code={status}")),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let date = |seconds| httpdate::fmt_http_date(now + Duration::from_secs(seconds));
        let read = |wanted: &str, date: Option<String>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(wanted).unwrap());
            if let Some(date) = date {
                headers.insert(DATE, HeaderValue::from_str(&date).unwrap());
            }
            retry_after(&headers, now).map(|delay| delay.as_secs())
        };
        assert_eq!(read("120", None), Some(120));
        assert_eq!(read(&date(90), None), Some(90));
        // The server's clock is an hour ahead.
        assert_eq!(read(&date(3600 + 30), Some(date(3600))), Some(30));
        assert_eq!(read(&date(0), Some(date(5))), Some(0));
        for wrong in ["soon", "-1", "1.5", "", "18446744073709551616"] {
            assert_eq!(read(wrong, None), None, "{wrong}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn i15_an_excerpt_is_short_and_repeats_neither_secret_nor_payload() {
        let secrets = ["p@ss:w/ord%21".to_owned()];
        let payload = br#"{"name": "Ada Lovelace", "card": "4111-1111"}"#;
        let shown = |body: &str| excerpt(body.as_bytes(), &secrets, payload);
        assert_eq!(shown(" no such customer \n"), "no such customer");
        assert_eq!(shown(&"é".repeat(1000)).chars().count(), EXCERPT_CHARS);
        for body in [
            r#"{"error": "bad", "received": {"name": "Ada Lovelace", "card": "4111-1111"}}"#,
            r#""{\"name\": \"Ada Lovelace\", \"card\": \"4111-1111\"}""#,
            r#"unknown name: Ada Lovelace", "card""#,
            "no user p@ss:w/ord%21",
        ] {
            assert_eq!(shown(body), "withheld: it repeats what was sent", "{body}");
        }
        let late = format!("{}p@ss:w/ord%21", "x".repeat(EXCERPT_CHARS));
        assert!(shown(&late).starts_with("withheld"));
        assert_eq!(
            excerpt(b"no: secret", &[], b"secret"),
            "withheld: it repeats what was sent"
        );
        assert_eq!(excerpt(b"no", &[], b""), "no");
        assert_eq!(excerpt(&[b'n', 0xff], &[], b"x"), "n\u{fffd}");
    }
}
