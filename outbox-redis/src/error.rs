//! The one place where Redis's error codes become the project's errors.

use outbox_core::{Error, ErrorKind, Outcome, Scope};
use redis::{ErrorKind as DriverKind, RedisError, ServerError};

/// The operation that errors of sending name.
pub(crate) const PUBLISH: &str = "publish to Redis";
/// The operation that errors of connecting name.
pub(crate) const CONNECT: &str = "connect to Redis";

/// What a server's error reply means.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The project's form of it.
    pub(crate) error: Error,
    /// The connection leads to a server, or has a sign-in, that will go on refusing.
    pub(crate) reconnect: bool,
}

impl Refusal {
    /// Reads an error reply.
    pub(crate) fn new(operation: &'static str, reply: &ServerError) -> Self {
        let detail = reply.details().unwrap_or_default();
        Self::from_parts(operation, reply.code(), detail)
    }

    fn from_parts(operation: &'static str, code: &str, detail: &str) -> Self {
        // "EXECABORT Transaction discarded because of: OOM command not allowed …"
        if code == "EXECABORT"
            && let Some((_, inner)) = detail.split_once("because of: ")
        {
            let (code, detail) = inner.split_once(' ').unwrap_or((inner, ""));
            return Self::from_parts(operation, code, detail);
        }
        let (kind, scope, reconnect) = classify(code, detail);
        let message = format!("{code} {}", without_arguments(detail));
        Self {
            error: Error::new(kind, operation, message.trim_end().to_owned()).scope(scope),
            reconnect,
        }
    }

    /// The outcome of an event that got this answer: it did not land.
    pub(crate) fn into_outcome(self) -> Outcome {
        if self.error.kind() == ErrorKind::TooLarge {
            Outcome::Rejected(self.error)
        } else {
            Outcome::Failed(self.error)
        }
    }
}

/// The table: code and text of a reply → kind, scope, whether a new connection is needed.
///
/// A code that is not known has destination scope: codes of their own tell a state of the server,
/// and a state must not turn the backlog into dead letters. The general code `ERR` has message
/// scope, where its text is not known: attempts count, and the event's reason is kept.
fn classify(code: &str, detail: &str) -> (ErrorKind, Scope, bool) {
    use ErrorKind as K;
    use Scope::{Destination, Topic};
    match code {
        // MISCONF: the server refuses writes because it can't persist, mostly for a full disk.
        "OOM" | "MISCONF" => (K::OutOfSpace, Destination, false),
        "READONLY" => (K::ReadOnly, Destination, true),
        "BUSY" | "TRYAGAIN" | "EXECABORT" => (K::Unavailable, Destination, false),
        // The name may lead to the right server by now: a primary that was replaced loads the new
        // one's data, or has lost its replicas.
        "LOADING" | "NOREPLICAS" | "MASTERDOWN" | "CLUSTERDOWN" | "MOVED" | "ASK" => {
            (K::Unavailable, Destination, true)
        }
        "CROSSSLOT" => (K::Configuration, Destination, false),
        "NOAUTH" | "WRONGPASS" => (K::Unauthenticated, Destination, true),
        "DENIED" => (K::Unauthorized, Destination, true),
        // "… to access one of the keys …", or "… to run the 'xadd' command".
        "NOPERM" if detail.contains("to access") => (K::Unauthorized, Topic, false),
        "NOPERM" => (K::Unauthorized, Destination, false),
        "WRONGTYPE" => (K::WrongTopicType, Topic, false),
        "ERR" => general(detail),
        _ => (K::Protocol, Destination, true),
    }
}

/// The general code `ERR` is told apart by its text only.
fn general(detail: &str) -> (ErrorKind, Scope, bool) {
    use ErrorKind as K;
    use Scope::{Destination, Message, Topic};
    let has = |part: &str| detail.contains(part);
    if has("max number of clients") {
        (K::Unavailable, Destination, true)
    } else if has("unknown command") || has("without MULTI") || has("MULTI calls") {
        (K::Protocol, Destination, true)
    } else if has("invalid password") || has("operation not permitted") || has("uthentication") {
        (K::Unauthenticated, Destination, true)
    } else if has("no permissions") {
        (K::Unauthorized, Destination, false)
    } else if has("DB index") {
        (K::Configuration, Destination, true)
    } else if has("replica instances") {
        (K::ReadOnly, Destination, true)
    } else if has("exhausted the last possible ID") {
        (K::Refused, Topic, false)
    } else if has("too large") {
        (K::TooLarge, Message, false)
    } else if has("Protocol error") {
        (K::Protocol, Destination, true)
    } else {
        (K::Refused, Message, false)
    }
}

/// A server that does not know a command repeats its arguments, which are payloads and, for AUTH,
/// the password (I15).
fn without_arguments(detail: &str) -> &str {
    detail
        .split(", with args beginning")
        .next()
        .unwrap_or(detail)
}

/// No connection came about, so nothing was sent.
pub(crate) fn connecting(error: &RedisError, password: Option<&str>) -> Error {
    let refusal = match error.kind() {
        DriverKind::AuthenticationFailed => Error::new(
            ErrorKind::Unauthenticated,
            CONNECT,
            "the server does not accept the user or password",
        ),
        // Of a refused SELECT the driver keeps the text only, under the general code.
        DriverKind::Server(_) | DriverKind::Extension => {
            let code = error.code().unwrap_or_default();
            Refusal::from_parts(CONNECT, code, error.detail().unwrap_or_default()).error
        }
        DriverKind::InvalidClientConfig => Error::new(
            ErrorKind::Unavailable,
            CONNECT,
            "no address found for the host",
        ),
        DriverKind::Io if error.is_timeout() => timeout(CONNECT),
        DriverKind::Parse | DriverKind::RESP3NotSupported | DriverKind::UnexpectedReturnType => {
            Error::new(
                ErrorKind::Protocol,
                CONNECT,
                "the server does not answer like Redis",
            )
        }
        _ => {
            let text = transport(error);
            let kind = if text.contains("certificate") {
                ErrorKind::Unauthenticated
            } else {
                ErrorKind::Unavailable
            };
            Error::new(kind, CONNECT, text)
        }
    };
    match password.filter(|password| !password.is_empty()) {
        // A server or proxy in between may repeat what it was sent.
        Some(password) if refusal.to_string().contains(password) => Error::new(
            refusal.kind(),
            CONNECT,
            "the server refused (its answer is withheld: it repeats the password)",
        )
        .scope(refusal.failure_scope()),
        _ => refusal,
    }
}

/// The connection broke after something was sent: what was sent may have landed.
pub(crate) fn broken(error: &RedisError) -> Error {
    match error.kind() {
        DriverKind::Parse | DriverKind::UnexpectedReturnType => protocol(),
        _ => Error::new(ErrorKind::ConnectionLost, PUBLISH, transport(error)),
    }
}

/// The answer has not the form that the command's answers have.
pub(crate) fn protocol() -> Error {
    Error::new(
        ErrorKind::Protocol,
        PUBLISH,
        "the server's answer has an unknown form",
    )
}

/// No answer in time.
pub(crate) fn timeout(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "no answer in time")
}

/// A transport's error in words: of the system or of TLS, never the driver's own.
fn transport(error: &RedisError) -> String {
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => "the connection failed".to_owned(),
    };
    // How the driver words every connection that ended without a reason.
    if text == "broken pipe" {
        "the server closed the connection".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Directive, classify as directive};
    use redis::Value;

    use super::*;

    fn server_error(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(line: &str) -> Refusal {
        Refusal::new(PUBLISH, &server_error(line))
    }

    /// The lines are as servers of several versions write them.
    #[rustfmt::skip]
    const TABLE: [(&str, ErrorKind, Scope, bool); 35] = [
        ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::OutOfSpace, Scope::Destination, false),
        ("MISCONF Errors writing to the AOF file: No space left on device", ErrorKind::OutOfSpace, Scope::Destination, false),
        ("READONLY You can't write against a read only replica.", ErrorKind::ReadOnly, Scope::Destination, true),
        ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable, Scope::Destination, true),
        ("BUSY Redis is busy running a script.", ErrorKind::Unavailable, Scope::Destination, false),
        ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable, Scope::Destination, true),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ErrorKind::Unavailable, Scope::Destination, false),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", ErrorKind::Unavailable, Scope::Destination, true),
        ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable, Scope::Destination, true),
        ("MOVED 866 127.0.0.1:7001", ErrorKind::Unavailable, Scope::Destination, true),
        ("ASK 866 127.0.0.1:7001", ErrorKind::Unavailable, Scope::Destination, true),
        ("CROSSSLOT Keys in request don't hash to the same slot", ErrorKind::Configuration, Scope::Destination, false),
        ("NOAUTH Authentication required.", ErrorKind::Unauthenticated, Scope::Destination, true),
        ("WRONGPASS invalid username-password pair or user is disabled.", ErrorKind::Unauthenticated, Scope::Destination, true),
        ("DENIED Redis is running in protected mode", ErrorKind::Unauthorized, Scope::Destination, true),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", ErrorKind::Unauthorized, Scope::Topic, false),
        ("NOPERM User monkey has no permissions to access one of the keys used as arguments", ErrorKind::Unauthorized, Scope::Topic, false),
        ("NOPERM this user has no permissions to run the 'xadd' command", ErrorKind::Unauthorized, Scope::Destination, false),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", ErrorKind::WrongTopicType, Scope::Topic, false),
        ("EXECABORT Transaction discarded because of previous errors.", ErrorKind::Unavailable, Scope::Destination, false),
        ("EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::OutOfSpace, Scope::Destination, false),
        ("EXECABORT Transaction discarded because of: READONLY You can't write against a read only replica.", ErrorKind::ReadOnly, Scope::Destination, true),
        ("ERR max number of clients reached", ErrorKind::Unavailable, Scope::Destination, true),
        ("ERR unknown command 'XADD', with args beginning with: 'orders' ", ErrorKind::Protocol, Scope::Destination, true),
        ("ERR EXEC without MULTI", ErrorKind::Protocol, Scope::Destination, true),
        ("ERR MULTI calls can not be nested", ErrorKind::Protocol, Scope::Destination, true),
        ("ERR Protocol error: invalid bulk length", ErrorKind::Protocol, Scope::Destination, true),
        ("ERR invalid password", ErrorKind::Unauthenticated, Scope::Destination, true),
        ("ERR operation not permitted", ErrorKind::Unauthenticated, Scope::Destination, true),
        ("ERR DB index is out of range", ErrorKind::Configuration, Scope::Destination, true),
        ("ERR WAIT cannot be used with replica instances.", ErrorKind::ReadOnly, Scope::Destination, true),
        ("ERR The stream has exhausted the last possible ID, unable to add more items", ErrorKind::Refused, Scope::Topic, false),
        ("ERR Elements are too large to be stored", ErrorKind::TooLarge, Scope::Message, false),
        ("ERR something else", ErrorKind::Refused, Scope::Message, false),
        ("SOMETHING new", ErrorKind::Protocol, Scope::Destination, true),
    ];

    #[test]
    fn each_code_has_its_kind_and_scope() {
        for (line, kind, scope, reconnect) in TABLE {
            let refusal = refusal(line);
            assert_eq!(refusal.error.kind(), kind, "{line}");
            assert_eq!(refusal.error.failure_scope(), scope, "{line}");
            assert_eq!(refusal.reconnect, reconnect, "{line}");
        }
    }

    #[test]
    fn what_no_waiting_can_mend_is_dead_at_once_and_only_that() {
        let of = |line| directive(&refusal(line).into_outcome());
        assert_eq!(
            of("ERR Elements are too large to be stored"),
            Directive::DeadLetter
        );
        assert_eq!(of("ERR something else"), Directive::Retry);
        assert_eq!(of("WRONGTYPE x"), Directive::PauseTopic);
        assert_eq!(of("OOM x"), Directive::PauseDestination);
    }

    /// I15: servers repeat the arguments of a command that they do not know.
    #[test]
    fn i15_repeated_arguments_are_cut_off() {
        let line = "ERR unknown command 'XADD', with args beginning with: 'orders' '*' 'secret' ";
        let error = refusal(line).error;
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("unknown command 'XADD'"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn i15_an_answer_that_repeats_the_password_is_withheld() {
        let error = RedisError::from(server_error("DENIED bad line: AUTH p@ss:w/ord%21"));
        let error = connecting(&error, Some("p@ss:w/ord%21"));
        assert_eq!(error.kind(), ErrorKind::Unauthorized);
        assert_eq!(error.failure_scope(), Scope::Destination);
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("p@ss"), "{shown}");
    }

    #[test]
    fn failures_to_connect_are_told_apart() {
        let io = |kind: std::io::ErrorKind| RedisError::from(std::io::Error::from(kind));
        let table = [
            (
                io(std::io::ErrorKind::ConnectionRefused),
                ErrorKind::Unavailable,
            ),
            (io(std::io::ErrorKind::BrokenPipe), ErrorKind::Unavailable),
            (io(std::io::ErrorKind::TimedOut), ErrorKind::Timeout),
            (
                (DriverKind::AuthenticationFailed, "x").into(),
                ErrorKind::Unauthenticated,
            ),
            (
                (DriverKind::InvalidClientConfig, "x").into(),
                ErrorKind::Unavailable,
            ),
            ((DriverKind::Parse, "x").into(), ErrorKind::Protocol),
            (
                server_error("NOAUTH Authentication required.").into(),
                ErrorKind::Unauthenticated,
            ),
            (server_error("LOADING x").into(), ErrorKind::Unavailable),
            (server_error("STRANGE x").into(), ErrorKind::Protocol),
            (
                server_error("ERR this user has no permissions to run the 'select' command").into(),
                ErrorKind::Unauthorized,
            ),
        ];
        for (error, kind) in table {
            let shown = error.to_string();
            let error = connecting(&error, None);
            assert_eq!(error.kind(), kind, "{shown}");
            assert_eq!(error.failure_scope(), Scope::Destination, "{shown}");
        }
        let error = broken(&io(std::io::ErrorKind::BrokenPipe));
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        assert!(
            error.to_string().contains("closed the connection"),
            "{error}"
        );
        let error = broken(&(DriverKind::Parse, "x").into());
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }
}
