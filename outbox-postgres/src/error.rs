//! The driver's failures in the terms of this project. The code decides, never the text.

use std::io;

use outbox_core::{Error, ErrorKind, Scope};
use sqlx::postgres::PgDatabaseError;

/// Makes an error of one of the driver's. The driver's error is not kept as the source: its `Debug`
/// shows details of the server, which may be whole rows (I15).
pub(crate) fn from_sqlx(
    operation: &'static str,
    server: Option<&str>,
    error: &sqlx::Error,
) -> Error {
    let made = match error {
        sqlx::Error::Database(database) => match database.try_downcast_ref::<PgDatabaseError>() {
            Some(error) => from_server(operation, error),
            None => Error::new(
                ErrorKind::Internal,
                operation,
                "an error of another database",
            ),
        },
        sqlx::Error::Io(error) => Error::new(io_kind(error.kind()), operation, error.to_string()),
        sqlx::Error::Tls(error) => Error::new(
            ErrorKind::Configuration,
            operation,
            format!("TLS failed: {error}"),
        ),
        sqlx::Error::PoolTimedOut => Error::new(
            ErrorKind::Timeout,
            operation,
            "no connection within the time limit: the server does not answer, or all connections are in use",
        ),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => Error::new(
            ErrorKind::Unavailable,
            operation,
            "the connections are closed",
        ),
        sqlx::Error::Protocol(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::RowNotFound
        | sqlx::Error::TypeNotFound { .. } => Error::new(
            ErrorKind::Protocol,
            operation,
            "the server's answer has an unknown form",
        ),
        sqlx::Error::Configuration(_) => Error::new(
            ErrorKind::Configuration,
            operation,
            "the driver refuses the connection's settings",
        ),
        sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) => Error::new(
            ErrorKind::InvalidEvent,
            operation,
            "the driver can't encode a value",
        ),
        _ => Error::new(
            ErrorKind::Internal,
            operation,
            "the driver was used in a wrong way",
        ),
    };
    match server {
        Some(server) => made.context("server", server),
        None => made,
    }
}

fn from_server(operation: &'static str, error: &PgDatabaseError) -> Error {
    let kind = kind_of(error.code());
    let mut made =
        Error::new(kind, operation, error.message().to_owned()).context("code", error.code());
    // Missing rights on the outbox concern every topic in it.
    if kind.usual_scope() == Scope::Topic {
        made = made.scope(Scope::Destination);
    }
    match error.constraint() {
        Some(constraint) => made.context("constraint", constraint),
        None => made,
    }
}

fn io_kind(kind: io::ErrorKind) -> ErrorKind {
    match kind {
        io::ErrorKind::TimedOut => ErrorKind::Timeout,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::WriteZero => ErrorKind::ConnectionLost,
        _ => ErrorKind::Unavailable,
    }
}

/// The kind for a SQLSTATE (PostgreSQL documentation, appendix A).
fn kind_of(code: &str) -> ErrorKind {
    match code {
        "28000" | "28P01" => ErrorKind::Unauthenticated,
        "42501" => ErrorKind::Unauthorized,
        "42P01" | "3F000" => ErrorKind::SchemaMissing,
        // A column or function of ours that is not there.
        "42703" | "42883" => ErrorKind::SchemaOlder,
        // No such database; names or settings that the server refuses; a pooler that mixes up
        // prepared statements.
        "3D000" | "42704" | "22023" | "26000" | "42P05" => ErrorKind::Configuration,
        "25006" => ErrorKind::ReadOnly,
        "53100" | "53200" => ErrorKind::OutOfSpace,
        // Too many connections; shutting down, crashing or starting up.
        "53000" | "53300" | "53400" | "57P01" | "57P02" | "57P03" | "57P04" | "08001" | "08004" => {
            ErrorKind::Unavailable
        }
        "25P03" | "25P04" | "57P05" => ErrorKind::ConnectionLost,
        "57014" | "55P03" => ErrorKind::Timeout,
        "22021" | "22P05" => ErrorKind::InvalidEvent,
        "08P01" => ErrorKind::Protocol,
        _ => match code.get(..2) {
            Some("08") => ErrorKind::ConnectionLost,
            Some("28") => ErrorKind::Unauthenticated,
            Some("40") => ErrorKind::Conflict,
            Some("54") => ErrorKind::TooLarge,
            Some("53") => ErrorKind::OutOfSpace,
            Some("58") => ErrorKind::Unavailable,
            // A constraint, trigger or type of the user's own refuses the row, or the caller's
            // transaction has failed before.
            Some("22" | "23" | "25" | "27" | "44" | "P0") => ErrorKind::Refused,
            _ => ErrorKind::Internal,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_kind() {
        use ErrorKind as K;
        for (code, kind) in [
            ("28000", K::Unauthenticated),
            ("28P01", K::Unauthenticated),
            ("3D000", K::Configuration),
            ("42704", K::Configuration),
            ("22023", K::Configuration),
            ("26000", K::Configuration),
            ("42P05", K::Configuration),
            ("42501", K::Unauthorized),
            ("42P01", K::SchemaMissing),
            ("3F000", K::SchemaMissing),
            ("42703", K::SchemaOlder),
            ("42883", K::SchemaOlder),
            ("25006", K::ReadOnly),
            ("53100", K::OutOfSpace),
            ("53200", K::OutOfSpace),
            ("53300", K::Unavailable),
            ("53400", K::Unavailable),
            ("57P01", K::Unavailable),
            ("57P02", K::Unavailable),
            ("57P03", K::Unavailable),
            ("08001", K::Unavailable),
            ("08006", K::ConnectionLost),
            ("25P03", K::ConnectionLost),
            ("57P05", K::ConnectionLost),
            ("57014", K::Timeout),
            ("55P03", K::Timeout),
            ("40001", K::Conflict),
            ("40P01", K::Conflict),
            ("22021", K::InvalidEvent),
            ("22P05", K::InvalidEvent),
            ("54000", K::TooLarge),
            ("23514", K::Refused),
            ("P0001", K::Refused),
            ("25P02", K::Refused),
            ("08P01", K::Protocol),
            ("42601", K::Internal),
            ("XX000", K::Internal),
            ("", K::Internal),
        ] {
            assert_eq!(kind_of(code), kind, "{code}");
        }
    }

    #[test]
    fn failures_of_the_connection_have_their_kind() {
        use io::ErrorKind as I;
        for (error, kind) in [
            (
                sqlx::Error::Io(I::ConnectionRefused.into()),
                ErrorKind::Unavailable,
            ),
            (
                sqlx::Error::Io(I::ConnectionReset.into()),
                ErrorKind::ConnectionLost,
            ),
            (
                sqlx::Error::Io(I::UnexpectedEof.into()),
                ErrorKind::ConnectionLost,
            ),
            (sqlx::Error::Io(I::TimedOut.into()), ErrorKind::Timeout),
            (sqlx::Error::PoolTimedOut, ErrorKind::Timeout),
            (sqlx::Error::PoolClosed, ErrorKind::Unavailable),
            (sqlx::Error::Protocol("hunter2".into()), ErrorKind::Protocol),
            (
                sqlx::Error::Configuration("hunter2".into()),
                ErrorKind::Configuration,
            ),
            (sqlx::Error::Tls("no".into()), ErrorKind::Configuration),
        ] {
            let made = from_sqlx("claim", Some("h:1/d"), &error);
            assert_eq!(made.kind(), kind, "{error}");
            let text = format!("{made} {made:?}");
            assert!(
                text.contains("h:1/d") && !text.contains("hunter2"),
                "{text}"
            );
        }
    }
}
