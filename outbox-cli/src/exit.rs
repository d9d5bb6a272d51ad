//! How the program ends: one line on standard error and a documented code.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use outbox_core::{Error, ErrorKind, remedy};

use crate::redact;

/// What the exit codes mean, as `--help` prints it.
pub(crate) const CODES_HELP: &str = "\
Exit codes:
  0    done; a relay that was stopped and drained
  1    any other failure
  2    wrong arguments or configuration
  3    a server can't be reached or does not answer; trying again may help
  4    a server refused user, password or permission
  5    the schema is missing, older or newer than this program
  6    an event or other input is invalid; nothing was written
  130  stopped by a signal before all was done; a relay: at once, by a second one";

/// Writes to standard error. Where that is full or closed the exit code is all that tells what
/// happened: it must not be lost to the panic of `eprint!`.
pub(crate) fn tell(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// A failure that is not in the terms of the core: arguments, configuration, input.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const REFUSED: u8 = 4;
const SCHEMA: u8 = 5;
const INPUT: u8 = 6;
/// What a shell reports for a program that SIGINT ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command failed: one line for people, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// Something failed that no other code names.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: FAILED,
        }
    }

    /// Arguments or configuration are wrong.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: USAGE,
        }
    }

    /// Input is wrong: an event, a line, a file.
    pub(crate) fn input(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: INPUT,
        }
    }

    /// A signal stopped it before all was done.
    pub(crate) fn interrupted(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: INTERRUPTED,
        }
    }

    /// One of several checks that failed, told in one: what it says stands elsewhere, its code counts.
    pub(crate) fn summed_up(self, text: String) -> Self {
        Self { text, ..self }
    }

    /// Adds what was done before it failed.
    pub(crate) fn after(mut self, done: &str) -> Self {
        self.text.push_str("; ");
        self.text.push_str(done);
        self
    }

    /// Tells it on standard error; gives the code that the process ends with.
    pub(crate) fn end(&self) -> ExitCode {
        tell(&format!("{self}\n"));
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    /// One line: control characters of other programs' texts and passwords in URLs are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line: String = self
            .text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        write!(f, "error: {}", redact::urls(&line))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = format!("{error} — {}", remedy(error.kind()));
        Self {
            text,
            code: code_of(error.kind()),
        }
    }
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Configuration => USAGE,
        ErrorKind::Unavailable
        | ErrorKind::ConnectionLost
        | ErrorKind::Timeout
        | ErrorKind::Throttled
        | ErrorKind::OutOfSpace
        | ErrorKind::ReadOnly => UNREACHABLE,
        ErrorKind::Unauthenticated | ErrorKind::Unauthorized => REFUSED,
        ErrorKind::SchemaMissing | ErrorKind::SchemaOlder | ErrorKind::SchemaNewer => SCHEMA,
        ErrorKind::InvalidEvent | ErrorKind::TooLarge | ErrorKind::InvalidTopic => INPUT,
        ErrorKind::Refused
        | ErrorKind::Panic
        | ErrorKind::TopicNotFound
        | ErrorKind::Unroutable
        | ErrorKind::WrongTopicType
        | ErrorKind::Conflict
        | ErrorKind::LeaseLost
        | ErrorKind::Protocol
        | ErrorKind::Internal => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_its_remedy() {
        let error = Error::new(ErrorKind::SchemaMissing, "check store", "no table\nhere")
            .context("schema", "outbox");
        assert_eq!(
            Failure::from(error).to_string(),
            "error: check store: schema_missing: no table here (schema=outbox) — run `outbox \
             migrate`, or correct the schema name"
        );
    }

    #[test]
    fn no_kind_ends_with_success_and_the_help_names_each_code() {
        for kind in ErrorKind::ALL {
            let code = code_of(*kind);
            assert_ne!(code, 0, "{kind}");
            assert!(
                CODES_HELP.contains(&format!("\n  {code}  ")),
                "{kind}: {code}"
            );
        }
    }
}
