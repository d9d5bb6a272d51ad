//! The driver's failures in the terms of this project. The code decides, never the text.

use outbox_core::{Error, ErrorKind, Scope};

/// Makes an error of one of the driver's.
pub(crate) fn from_sqlx(operation: &'static str, file: Option<&str>, error: &sqlx::Error) -> Error {
    let made = match error {
        sqlx::Error::Database(database) => {
            from_code(operation, code_of(&**database), database.message())
        }
        sqlx::Error::PoolTimedOut => Error::new(
            ErrorKind::Timeout,
            operation,
            "no connection within the time limit: all of them are in use",
        ),
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => Error::new(
            ErrorKind::Unavailable,
            operation,
            "the connections are closed",
        ),
        sqlx::Error::Io(error) => Error::new(ErrorKind::Unavailable, operation, error.to_string()),
        sqlx::Error::Protocol(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::RowNotFound
        | sqlx::Error::TypeNotFound { .. } => Error::new(
            ErrorKind::Protocol,
            operation,
            "the database's answer has an unknown form",
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
    match file {
        Some(file) => made.context("file", file),
        None => made,
    }
}

/// The extended result code.
fn code_of(error: &dyn sqlx::error::DatabaseError) -> i32 {
    let code = error.code().and_then(|code| code.parse().ok());
    code.unwrap_or_default()
}

/// Whether another connection holds the lock for writing.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| code_of(error) & 0xff == 5)
}

fn from_code(operation: &'static str, code: i32, message: &str) -> Error {
    let (kind, remedy) = kind_of(code);
    let mut made = Error::new(kind, operation, message.to_owned()).context("code", code);
    // Missing rights on the file concern every topic in it.
    if kind.usual_scope() == Scope::Topic {
        made = made.scope(Scope::Destination);
    }
    match remedy {
        Some(remedy) => made.context("remedy", remedy),
        None => made,
    }
}

/// The kind for a result code (SQLite documentation, Result and Error Codes), and what helps where
/// the code's own text does not say it.
fn kind_of(code: i32) -> (ErrorKind, Option<&'static str>) {
    // Extended codes that differ from their primary one.
    match code {
        // SQLITE_BUSY_SNAPSHOT: a transaction that began as a reader can't write any more.
        517 => {
            return (
                ErrorKind::Conflict,
                Some("begin transactions that write by BEGIN IMMEDIATE, and repeat this one"),
            );
        }
        // SQLITE_READONLY_DBMOVED.
        1032 => return (ErrorKind::Unavailable, Some(MOVED)),
        _ => {}
    }
    match code & 0xff {
        // Our statements are well formed: what they can miss is a table or a column.
        1 => (
            ErrorKind::SchemaMissing,
            Some("migrate the file, or name the right one"),
        ),
        3 | 23 => (
            ErrorKind::Unauthorized,
            Some("let this user read and write the file and its folder"),
        ),
        5 => (
            ErrorKind::Timeout,
            Some("another connection writes for longer than busy_timeout: end its transaction"),
        ),
        6 => (ErrorKind::Conflict, None),
        7 => (ErrorKind::OutOfSpace, None),
        8 => (
            ErrorKind::ReadOnly,
            Some("let this user write the file and its folder, or mount it for writing"),
        ),
        9 => (ErrorKind::Timeout, None),
        10 => (
            ErrorKind::Unavailable,
            Some("the disk or file system fails: look at the system's log"),
        ),
        11 => (
            ErrorKind::Configuration,
            Some("the file is damaged: stop all programs on it and restore it"),
        ),
        13 => (ErrorKind::OutOfSpace, Some("make room on the disk")),
        14 => (
            ErrorKind::Configuration,
            Some(
                "the folder must exist and the file be reachable for this user; `migrate` makes a new file",
            ),
        ),
        15 => (ErrorKind::Unavailable, None),
        18 => (ErrorKind::TooLarge, None),
        19 | 20 | 25 => (ErrorKind::InvalidEvent, None),
        26 => (
            ErrorKind::Configuration,
            Some("the file is no SQLite database: name another one"),
        ),
        _ => (ErrorKind::Internal, None),
    }
}

/// What to do when the file under an open connection is gone.
pub(crate) const MOVED: &str =
    "the file was deleted, moved or replaced while it was open: put it back and restart";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_kind() {
        for (code, kind) in [
            (1, ErrorKind::SchemaMissing),
            (3, ErrorKind::Unauthorized),
            (5, ErrorKind::Timeout),
            (261, ErrorKind::Timeout),
            (517, ErrorKind::Conflict),
            (6, ErrorKind::Conflict),
            (262, ErrorKind::Conflict),
            (7, ErrorKind::OutOfSpace),
            (8, ErrorKind::ReadOnly),
            (776, ErrorKind::ReadOnly),
            (1032, ErrorKind::Unavailable),
            (9, ErrorKind::Timeout),
            (10, ErrorKind::Unavailable),
            (778, ErrorKind::Unavailable),
            (11, ErrorKind::Configuration),
            (13, ErrorKind::OutOfSpace),
            (14, ErrorKind::Configuration),
            (15, ErrorKind::Unavailable),
            (18, ErrorKind::TooLarge),
            (19, ErrorKind::InvalidEvent),
            (1299, ErrorKind::InvalidEvent),
            (23, ErrorKind::Unauthorized),
            (26, ErrorKind::Configuration),
            (2, ErrorKind::Internal),
        ] {
            assert_eq!(kind_of(code).0, kind, "{code}");
        }
    }

    #[test]
    fn no_failure_of_the_file_is_of_one_topic() {
        for code in 0..=28 {
            let error = from_code("claim", code, "text");
            assert_ne!(error.failure_scope(), Scope::Topic, "{code}");
        }
    }
}
