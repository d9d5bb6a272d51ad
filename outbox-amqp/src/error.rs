//! The one place where RabbitMQ's reply codes become the project's errors.

use lapin::{Error as DriverError, ErrorKind as DriverKind, protocol::AMQPError};
use outbox_core::{Error, ErrorKind, Outcome, Scope};

/// The operation that errors of sending name.
pub(crate) const PUBLISH: &str = "publish to RabbitMQ";
/// The operation that errors of connecting name.
pub(crate) const CONNECT: &str = "connect to RabbitMQ";

/// Whom a closed channel is blamed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The exchange, for all its routing keys.
    Exchange,
    /// The topic: exchange and routing key.
    Topic,
    /// The one message.
    Message,
}

/// Why the server closed a channel that one message was in flight on.
pub(crate) fn closed(error: &AMQPError) -> (Outcome, Blame) {
    use ErrorKind as K;
    use Scope::{Message, Topic};
    let (kind, scope, blame) = match error.get_id() {
        404 => (K::TopicNotFound, Topic, Blame::Exchange),
        // The exchange, or, where topics have permissions of their own, the routing key.
        403 => (K::Unauthorized, Topic, Blame::Topic),
        405 => (K::Unavailable, Topic, Blame::Topic),
        311 => (K::TooLarge, Message, Blame::Message),
        // 406: over the server's max_message_size, or a property that it can't read.
        _ => (K::Refused, Message, Blame::Message),
    };
    let error = Error::new(kind, PUBLISH, words(error)).scope(scope);
    let outcome = if kind == K::TooLarge {
        Outcome::Rejected(error)
    } else {
        Outcome::Failed(error)
    };
    (outcome, blame)
}

/// Why the server returned a message.
pub(crate) fn returned(code: u16, text: &str) -> Error {
    let kind = match code {
        // 312: no queue for the routing key; 313: no consumer.
        312 | 313 => ErrorKind::Unroutable,
        _ => ErrorKind::Refused,
    };
    Error::new(kind, PUBLISH, format!("{code} {text}")).scope(Scope::Topic)
}

/// The server confirmed that a message was not taken.
pub(crate) fn nack() -> Error {
    let what = "the queue did not take it (basic.nack): it is full, or it failed";
    Error::new(ErrorKind::OutOfSpace, PUBLISH, what).scope(Scope::Topic)
}

/// An alarm of the server stops all publishers.
pub(crate) fn blocked(operation: &'static str) -> Error {
    let what = "the server blocks publishers: its memory or disk alarm is on";
    Error::new(ErrorKind::OutOfSpace, operation, what)
}

/// No connection came about, so nothing was sent.
pub(crate) fn connecting(error: &DriverError, password: &str) -> Error {
    let refusal = match error.kind() {
        DriverKind::ProtocolError(error) => {
            let kind = match error.get_id() {
                403 => ErrorKind::Unauthenticated,
                code => connection_kind(code),
            };
            Error::new(kind, CONNECT, words(error)).scope(Scope::Destination)
        }
        DriverKind::InvalidProtocolVersion(_) | DriverKind::ParsingError(_) => Error::new(
            ErrorKind::Protocol,
            CONNECT,
            "the server does not answer like RabbitMQ",
        ),
        _ => transport(error, ErrorKind::Unavailable, CONNECT),
    };
    // A server or proxy in between may repeat what it was sent.
    if !password.is_empty() && password != "guest" && refusal.to_string().contains(password) {
        let what = "the server refused (its answer is withheld: it repeats the password)";
        return Error::new(refusal.kind(), CONNECT, what).scope(Scope::Destination);
    }
    refusal
}

/// The connection ended while it was used: what was sent may have landed.
pub(crate) fn broken(error: &DriverError) -> Error {
    match error.kind() {
        DriverKind::ProtocolError(error) => {
            let kind = match error.get_id() {
                // An operator or a shutdown closed it.
                320 => ErrorKind::ConnectionLost,
                code => connection_kind(code),
            };
            Error::new(kind, PUBLISH, words(error)).scope(Scope::Destination)
        }
        _ => transport(error, ErrorKind::ConnectionLost, PUBLISH),
    }
}

/// The reply codes that end a connection.
fn connection_kind(code: u16) -> ErrorKind {
    match code {
        // Virtual host: not there, not permitted, or a limit of connections.
        403 | 530 => ErrorKind::Unauthorized,
        402 => ErrorKind::Configuration,
        // 320: forced; 506: a limit of channels or memory; 541: the virtual host is down.
        320 | 506 | 541 => ErrorKind::Unavailable,
        _ => ErrorKind::Protocol,
    }
}

/// An error without a reply code: of the system, of TLS, or of the driver's state.
fn transport(error: &DriverError, kind: ErrorKind, operation: &'static str) -> Error {
    match error.kind() {
        DriverKind::IOError(error) | DriverKind::RuntimeShutdownError(error) => {
            let text = error.to_string();
            let kind = if text.contains("certificate") {
                ErrorKind::Unauthenticated
            } else if error.kind() == std::io::ErrorKind::TimedOut {
                ErrorKind::Timeout
            } else {
                kind
            };
            // How the driver words every connection that ended without a reason.
            let text = if error.kind() == std::io::ErrorKind::ConnectionAborted {
                "the server closed the connection".to_owned()
            } else {
                text
            };
            Error::new(kind, operation, text)
        }
        DriverKind::MissingHeartbeatError => {
            let what = "the server gave no sign of life";
            Error::new(kind, operation, what)
        }
        DriverKind::SerialisationError(_) | DriverKind::ParsingError(_) => {
            let what = "the server's answer has an unknown form";
            Error::new(ErrorKind::Protocol, operation, what)
        }
        _ => Error::new(kind, operation, "the connection ended"),
    }
}

/// Declaring what the settings ask for failed.
pub(crate) fn declaring(error: &DriverError, what: &'static str) -> Error {
    let DriverKind::ProtocolError(reply) = error.kind() else {
        return connecting(error, "");
    };
    let kind = match reply.get_id() {
        // 406: it is there with other properties.
        406 | 404 => ErrorKind::Configuration,
        403 => ErrorKind::Unauthorized,
        405 => ErrorKind::Unavailable,
        code => connection_kind(code),
    };
    Error::new(kind, CONNECT, words(reply))
        .scope(Scope::Destination)
        .context("setting", what)
}

/// No answer in time.
pub(crate) fn timeout(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "no answer in time")
}

fn words(error: &AMQPError) -> String {
    let text = error.get_message().as_str();
    // "NOT_FOUND - no exchange 'x' in vhost '/'"
    format!("{} {text}", error.get_id())
}

#[cfg(test)]
mod tests {
    use outbox_core::{Directive, classify as directive};

    use super::*;

    fn reply(code: u16) -> AMQPError {
        AMQPError::from_id(code, "WORDS - of the server".into()).unwrap()
    }

    fn driver(code: u16) -> DriverError {
        DriverKind::ProtocolError(reply(code)).into()
    }

    #[test]
    fn each_code_that_closes_a_channel_has_its_kind_scope_and_blame() {
        use ErrorKind as K;
        let table = [
            (
                404,
                K::TopicNotFound,
                Scope::Topic,
                Blame::Exchange,
                Directive::PauseTopic,
            ),
            (
                403,
                K::Unauthorized,
                Scope::Topic,
                Blame::Topic,
                Directive::PauseTopic,
            ),
            (
                405,
                K::Unavailable,
                Scope::Topic,
                Blame::Topic,
                Directive::PauseTopic,
            ),
            (
                406,
                K::Refused,
                Scope::Message,
                Blame::Message,
                Directive::Retry,
            ),
            (
                311,
                K::TooLarge,
                Scope::Message,
                Blame::Message,
                Directive::DeadLetter,
            ),
        ];
        for (code, kind, scope, blame, then) in table {
            let (outcome, blamed) = closed(&reply(code));
            let error = outcome.error().unwrap();
            assert_eq!(
                (error.kind(), error.failure_scope(), blamed),
                (kind, scope, blame),
                "{code}"
            );
            assert_eq!(directive(&outcome), then, "{code}");
            assert!(error.to_string().contains(&code.to_string()), "{error}");
            assert!(error.to_string().contains("of the server"), "{error}");
        }
    }

    #[test]
    fn each_code_that_ends_a_connection_has_its_kind() {
        use ErrorKind as K;
        let table = [
            (403, K::Unauthenticated, K::Unauthorized),
            (530, K::Unauthorized, K::Unauthorized),
            (402, K::Configuration, K::Configuration),
            (320, K::Unavailable, K::ConnectionLost),
            (506, K::Unavailable, K::Unavailable),
            (541, K::Unavailable, K::Unavailable),
            (501, K::Protocol, K::Protocol),
            (502, K::Protocol, K::Protocol),
            (503, K::Protocol, K::Protocol),
            (504, K::Protocol, K::Protocol),
            (505, K::Protocol, K::Protocol),
            (540, K::Protocol, K::Protocol),
        ];
        for (code, at_start, in_use) in table {
            for (error, kind) in [
                (connecting(&driver(code), ""), at_start),
                (broken(&driver(code)), in_use),
            ] {
                assert_eq!(error.kind(), kind, "{code}");
                assert_eq!(error.failure_scope(), Scope::Destination, "{code}");
            }
        }
    }

    #[test]
    fn each_code_of_a_declaration_has_its_kind() {
        use ErrorKind as K;
        for (code, kind) in [
            (406, K::Configuration),
            (404, K::Configuration),
            (403, K::Unauthorized),
            (405, K::Unavailable),
            (541, K::Unavailable),
        ] {
            let error = declaring(&driver(code), "declare_queue");
            assert_eq!(error.kind(), kind, "{code}");
            assert_eq!(error.failure_scope(), Scope::Destination, "{code}");
            assert!(error.to_string().contains("declare_queue"), "{error}");
        }
    }

    #[test]
    fn returns_and_nacks_are_the_topics() {
        for (error, kind) in [
            (returned(312, "NO_ROUTE"), ErrorKind::Unroutable),
            (returned(313, "NO_CONSUMERS"), ErrorKind::Unroutable),
            (returned(999, "NEW"), ErrorKind::Refused),
            (nack(), ErrorKind::OutOfSpace),
        ] {
            assert_eq!((error.kind(), error.failure_scope()), (kind, Scope::Topic));
        }
        assert_eq!(blocked(PUBLISH).failure_scope(), Scope::Destination);
    }

    #[test]
    fn failures_without_a_code_are_told_apart() {
        use std::io::{Error as IoError, ErrorKind as Io};
        let table = [
            (
                IoError::from(Io::ConnectionRefused),
                ErrorKind::Unavailable,
                ErrorKind::ConnectionLost,
            ),
            (
                IoError::from(Io::ConnectionAborted),
                ErrorKind::Unavailable,
                ErrorKind::ConnectionLost,
            ),
            (
                IoError::from(Io::TimedOut),
                ErrorKind::Timeout,
                ErrorKind::Timeout,
            ),
            (
                IoError::other("invalid peer certificate"),
                ErrorKind::Unauthenticated,
                ErrorKind::Unauthenticated,
            ),
        ];
        for (error, at_start, in_use) in table {
            let error = DriverError::from(error);
            assert_eq!(connecting(&error, "").kind(), at_start, "{error}");
            assert_eq!(broken(&error).kind(), in_use, "{error}");
        }
        let silent = DriverKind::MissingHeartbeatError.into();
        assert_eq!(broken(&silent).kind(), ErrorKind::ConnectionLost);
        assert_eq!(timeout(CONNECT).failure_scope(), Scope::Destination);
    }

    #[test]
    fn i15_an_answer_that_repeats_the_password_is_withheld() {
        let error = AMQPError::from_id(403, "no PLAIN for p@ss:w/ord%21".into()).unwrap();
        let error = connecting(&DriverKind::ProtocolError(error).into(), "p@ss:w/ord%21");
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(!format!("{error} {error:?}").contains("p@ss"));
    }
}
