//! Schemas of stores: their versions, and whether one is what a program works with.

use crate::error::{Error, ErrorKind, Result};

/// One step from a version of the schema to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// The version that it leads to, from 1.
    pub version: i32,
    /// What it brings.
    pub name: &'static str,
    /// Its text, complete: run in one transaction it does what the store does.
    pub sql: String,
}

/// Says how the schema version that a store `found` (0: none) fits the one that this program expects.
///
/// # Errors
/// `SchemaMissing`, `SchemaOlder` or `SchemaNewer`, with both versions.
pub fn check_schema(operation: &'static str, found: i32, expected: i32) -> Result<()> {
    let (kind, what) = match found {
        _ if found == expected => return Ok(()),
        0 => (ErrorKind::SchemaMissing, "no migration has been applied"),
        older if older < expected => (
            ErrorKind::SchemaOlder,
            "the schema is older than this program",
        ),
        _ => (
            ErrorKind::SchemaNewer,
            "the schema is newer than this program",
        ),
    };
    Err(Error::new(kind, operation, what)
        .context("found", found)
        .context("expected", expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_judged() {
        const VERSION: i32 = 2;
        assert!(check_schema("check", VERSION, VERSION).is_ok());
        for (found, kind) in [
            (0, ErrorKind::SchemaMissing),
            (VERSION + 1, ErrorKind::SchemaNewer),
            (-1, ErrorKind::SchemaOlder),
        ] {
            let error = check_schema("check", found, VERSION).unwrap_err();
            assert_eq!(error.kind(), kind);
        }
    }
}
