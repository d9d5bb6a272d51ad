//! The one place where NATS's error codes become the project's errors.

use async_nats::{ConnectError, ConnectErrorKind};
use outbox_core::{Error, ErrorKind, Outcome, Scope};

/// The operation that errors of sending name.
pub(crate) const PUBLISH: &str = "publish to NATS";
/// The operation that errors of connecting name.
pub(crate) const CONNECT: &str = "connect to NATS";

/// An error as JetStream writes it into an answer.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Refusal {
    /// As of HTTP.
    #[serde(default)]
    pub(crate) code: u32,
    /// JetStream's own number.
    #[serde(default)]
    pub(crate) err_code: u32,
    #[serde(default)]
    pub(crate) description: String,
}

impl Refusal {
    /// The project's form of it.
    pub(crate) fn error(&self, operation: &'static str) -> Error {
        let (kind, scope) = classify(self.err_code, self.code);
        Error::new(kind, operation, self.description.clone())
            .scope(scope)
            .context("code", self.err_code)
    }

    /// The outcome of an event that got this answer.
    pub(crate) fn into_outcome(self) -> Outcome {
        let error = self.error(PUBLISH);
        match error.kind() {
            ErrorKind::TooLarge => Outcome::Rejected(error),
            // An earlier copy is under way inside the server.
            ErrorKind::Conflict => Outcome::Unknown(error),
            _ => Outcome::Failed(error),
        }
    }
}

/// The table: JetStream's number, and where that is not known the code as of HTTP → kind and scope.
///
/// A stream's own limits have topic scope: other streams go on. None but the two about the size of
/// one message can end in dead letters at once, and an unknown number never ends a topic's wait by
/// burning attempts unless the server says that the request itself is at fault (4xx).
fn classify(number: u32, code: u32) -> (ErrorKind, Scope) {
    use ErrorKind as K;
    use Scope::{Destination, Message, Topic};
    match number {
        // Message over the stream's max_msg_size; headers over 64 KiB.
        10054 | 10097 => (K::TooLarge, Message),
        // "maximum messages exceeded", "maximum bytes exceeded", per subject too; a failed write.
        10077 | 10053 => (K::OutOfSpace, Topic),
        // Resources of the account or the server.
        10002 | 10023 | 10028 | 10047 | 10120 => (K::OutOfSpace, Destination),
        10059 | 10060 => (K::TopicNotFound, Topic),
        // JetStream is not enabled, here or for this account; its cluster has no leader.
        10039 | 10076 | 10004 | 10006 | 10008 | 10010 => (K::Unavailable, Destination),
        // The stream has none, or is offline.
        10007 | 10009 | 10118 | 10194 => (K::Unavailable, Topic),
        10167 => (K::Throttled, Topic),
        10158 => (K::Conflict, Topic),
        // Sealed; a counter; only for batches: a stream that takes no plain message.
        10109 => (K::ReadOnly, Topic),
        10168..=10173 => (K::WrongTopicType, Topic),
        10035 => (K::Unauthenticated, Destination),
        _ => match code {
            401 | 403 => (K::Unauthorized, Topic),
            408 => (K::Timeout, Topic),
            429 => (K::Throttled, Topic),
            400..=499 => (K::Refused, Message),
            _ => (K::Unavailable, Topic),
        },
    }
}

/// No connection came about, so nothing was sent. `secret` is withheld wherever it might be repeated.
pub(crate) fn connecting(error: &ConnectError, secret: Option<&str>) -> Error {
    use ErrorKind as K;
    let text = std::error::Error::source(error).map(ToString::to_string);
    let lower = text.as_deref().unwrap_or_default().to_lowercase();
    let has = |part: &str| lower.contains(part);
    let kind = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            K::Unauthenticated
        }
        ConnectErrorKind::TimedOut => K::Timeout,
        ConnectErrorKind::Tls | ConnectErrorKind::ServerParse => K::Configuration,
        _ if has("authenti") || has("authoriz") || has("certificate") => K::Unauthenticated,
        _ if has("tls required") => K::Configuration,
        _ if has("got nothing") => K::Unavailable,
        _ if has("expected info") || has("invalid server operation") || has("expected value") => {
            K::Protocol
        }
        _ => K::Unavailable,
    };
    let message = match (error.kind(), text) {
        (ConnectErrorKind::AuthorizationViolation, _) => {
            "the server does not accept the user, password, token or key".to_owned()
        }
        (ConnectErrorKind::TimedOut, _) => "no answer in time".to_owned(),
        (ConnectErrorKind::Dns, _) => "no address found for the host".to_owned(),
        // The driver repeats what the other side sent, of whatever form.
        (_, Some(text)) if text.contains("got nothing") => {
            "the server closed the connection".to_owned()
        }
        _ if kind == K::Protocol => "the server does not answer like NATS".to_owned(),
        (_, Some(text)) => text,
        (_, None) => "the connection failed".to_owned(),
    };
    let message = match secret.filter(|secret| !secret.is_empty()) {
        Some(secret) if message.contains(secret) => {
            "the server refused (its answer is withheld: it repeats the secret)".to_owned()
        }
        _ => message,
    };
    Error::new(kind, CONNECT, message).scope(Scope::Destination)
}

/// The connection broke after something was sent: what was sent may have landed.
pub(crate) fn broken() -> Error {
    Error::new(
        ErrorKind::ConnectionLost,
        PUBLISH,
        "the connection broke before the answer",
    )
}

/// No answer in time.
pub(crate) fn timeout(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "no answer in time")
}

/// Nobody keeps messages of this subject.
pub(crate) fn no_stream(topic: &str) -> Error {
    let what = "no stream of JetStream takes this subject: create one that does";
    Error::new(ErrorKind::TopicNotFound, PUBLISH, what).context("topic", topic)
}

/// There is no JetStream behind the connection.
pub(crate) fn no_jetstream(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        operation,
        "JetStream does not answer: not enabled for this account, or not ready",
    )
}

/// What the server does not permit this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denied {
    /// To publish to the subject; the message was dropped.
    Publish(String),
    /// To subscribe to the subject of answers.
    Answers,
}

impl Denied {
    /// Reads the server's error line, which stands for itself and answers no message.
    pub(crate) fn read(line: &str) -> Option<Self> {
        // `Permissions Violation for Publish to "orders"`, with more behind it for accounts.
        let start = "permissions violation for ";
        let rest = line.get(start.len()..)?;
        if !line.get(..start.len())?.eq_ignore_ascii_case(start) {
            return None;
        }
        let subject = rest.split('"').nth(1);
        if rest.to_lowercase().starts_with("publish to ") {
            Some(Self::Publish(subject?.to_owned()))
        } else {
            Some(Self::Answers)
        }
    }

    pub(crate) fn error(&self, operation: &'static str) -> Error {
        match self {
            Self::Publish(subject) => Error::new(
                ErrorKind::Unauthorized,
                operation,
                "the user may not publish to this subject",
            )
            .context("subject", subject),
            Self::Answers => Error::new(
                ErrorKind::Unauthorized,
                operation,
                "the user may not subscribe to the subject of its answers: set inbox_prefix, or permit it",
            )
            .scope(Scope::Destination),
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Directive, classify as directive};

    use super::*;

    fn refusal(err_code: u32, code: u32) -> Refusal {
        Refusal {
            code,
            err_code,
            description: "maximum bytes exceeded".to_owned(),
        }
    }

    #[rustfmt::skip]
    const TABLE: [(u32, u32, ErrorKind, Scope); 36] = [
        (10054, 400, ErrorKind::TooLarge, Scope::Message),
        (10097, 400, ErrorKind::TooLarge, Scope::Message),
        (10077, 503, ErrorKind::OutOfSpace, Scope::Topic),
        (10053, 500, ErrorKind::OutOfSpace, Scope::Topic),
        (10002, 400, ErrorKind::OutOfSpace, Scope::Destination),
        (10023, 503, ErrorKind::OutOfSpace, Scope::Destination),
        (10028, 500, ErrorKind::OutOfSpace, Scope::Destination),
        (10047, 500, ErrorKind::OutOfSpace, Scope::Destination),
        (10120, 400, ErrorKind::OutOfSpace, Scope::Destination),
        (10059, 404, ErrorKind::TopicNotFound, Scope::Topic),
        (10060, 400, ErrorKind::TopicNotFound, Scope::Topic),
        (10039, 503, ErrorKind::Unavailable, Scope::Destination),
        (10076, 503, ErrorKind::Unavailable, Scope::Destination),
        (10004, 500, ErrorKind::Unavailable, Scope::Destination),
        (10006, 500, ErrorKind::Unavailable, Scope::Destination),
        (10008, 503, ErrorKind::Unavailable, Scope::Destination),
        (10010, 503, ErrorKind::Unavailable, Scope::Destination),
        (10007, 500, ErrorKind::Unavailable, Scope::Topic),
        (10009, 500, ErrorKind::Unavailable, Scope::Topic),
        (10118, 500, ErrorKind::Unavailable, Scope::Topic),
        (10194, 500, ErrorKind::Unavailable, Scope::Topic),
        (10167, 429, ErrorKind::Throttled, Scope::Topic),
        (10158, 409, ErrorKind::Conflict, Scope::Topic),
        (10109, 400, ErrorKind::ReadOnly, Scope::Topic),
        (10168, 400, ErrorKind::WrongTopicType, Scope::Topic),
        (10169, 400, ErrorKind::WrongTopicType, Scope::Topic),
        (10170, 400, ErrorKind::WrongTopicType, Scope::Topic),
        (10171, 400, ErrorKind::WrongTopicType, Scope::Topic),
        (10172, 400, ErrorKind::WrongTopicType, Scope::Topic),
        (10173, 400, ErrorKind::WrongTopicType, Scope::Topic),
        (10035, 503, ErrorKind::Unauthenticated, Scope::Destination),
        (19999, 403, ErrorKind::Unauthorized, Scope::Topic),
        (19999, 408, ErrorKind::Timeout, Scope::Topic),
        (19999, 429, ErrorKind::Throttled, Scope::Topic),
        (19999, 400, ErrorKind::Refused, Scope::Message),
        (19999, 500, ErrorKind::Unavailable, Scope::Topic),
    ];

    #[test]
    fn each_code_has_its_kind_and_scope() {
        for (number, code, kind, scope) in TABLE {
            let error = refusal(number, code).error(PUBLISH);
            assert_eq!(error.kind(), kind, "{number} {code}");
            assert_eq!(error.failure_scope(), scope, "{number} {code}");
        }
    }

    /// A full stream must never turn its backlog into dead letters.
    #[test]
    fn only_what_no_waiting_can_mend_is_dead_at_once() {
        for (number, code, kind, _) in TABLE {
            let outcome = refusal(number, code).into_outcome();
            let dead = directive(&outcome) == Directive::DeadLetter;
            assert_eq!(dead, kind == ErrorKind::TooLarge, "{number}");
            assert_eq!(
                matches!(outcome, Outcome::Unknown(_)),
                number == 10158,
                "{number}"
            );
        }
    }

    #[test]
    fn denials_are_read_from_the_error_line() {
        for (line, read) in [
            (
                "Permissions Violation for Publish to \"a.b\"",
                Some(Denied::Publish("a.b".to_owned())),
            ),
            (
                "permissions violation for publish to \"a\"",
                Some(Denied::Publish("a".to_owned())),
            ),
            (
                "Permissions Violation for Subscription to \"_INBOX.x.*\"",
                Some(Denied::Answers),
            ),
            ("Stale Connection", None),
            ("größe größe größe größe", None),
            ("", None),
        ] {
            assert_eq!(Denied::read(line), read, "{line}");
        }
        let error = Denied::Publish("a".to_owned()).error(PUBLISH);
        assert_eq!(
            (error.kind(), error.failure_scope()),
            (ErrorKind::Unauthorized, Scope::Topic)
        );
        assert_eq!(
            Denied::Answers.error(PUBLISH).failure_scope(),
            Scope::Destination
        );
    }

    #[test]
    fn failures_to_connect_are_told_apart() {
        use ConnectErrorKind as C;
        use ErrorKind as K;
        let with = |kind: C, text: &str| ConnectError::with_source(kind, text.to_owned());
        for (error, kind) in [
            (with(C::AuthorizationViolation, "x"), K::Unauthenticated),
            (with(C::Authentication, "x"), K::Unauthenticated),
            (with(C::TimedOut, "x"), K::Timeout),
            (with(C::Dns, "x"), K::Unavailable),
            (with(C::Tls, "could not load certs"), K::Configuration),
            (with(C::ServerParse, "x"), K::Configuration),
            (with(C::Io, "connection refused"), K::Unavailable),
            (
                with(C::Io, "nats: user authentication expired"),
                K::Unauthenticated,
            ),
            (
                with(C::Io, "invalid peer certificate: UnknownIssuer"),
                K::Unauthenticated,
            ),
            (
                with(C::Io, "nats: maximum connections exceeded"),
                K::Unavailable,
            ),
            (with(C::Io, "expected INFO, got nothing"), K::Unavailable),
            (
                with(C::Io, "invalid server operation: '+PONG'"),
                K::Protocol,
            ),
        ] {
            let shown = error.to_string();
            let error = connecting(&error, None);
            assert_eq!(error.kind(), kind, "{shown}");
            assert_eq!(error.failure_scope(), Scope::Destination, "{shown}");
        }
    }

    #[test]
    fn i15_an_answer_that_repeats_the_secret_is_withheld() {
        let error = ConnectError::with_source(ConnectErrorKind::Io, "no such user p@ss:w/ord%21");
        let error = connecting(&error, Some("p@ss:w/ord%21"));
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("p@ss"), "{shown}");
    }
}
