//! The SQL texts, read from files and completed once for a schema.

use outbox_core::{DoneMode, Error, ErrorKind, Result};
use sqlx::{AssertSqlSafe, SqlStr};

/// A schema's name, checked and quoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schema(String);

impl Schema {
    /// Longer names would be cut by the server without a word.
    const NAME_BYTES_MAX: usize = 63;

    /// # Errors
    /// `Configuration` for names that would need escapes in SQL text, or that PostgreSQL reserves.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let good = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty()
            || name.len() > Self::NAME_BYTES_MAX
            || !name.chars().all(good)
            || name.starts_with("pg_")
        {
            return Err(Error::new(
                ErrorKind::Configuration,
                "read PostgreSQL settings",
                "a schema's name is 1 to 63 bytes of letters, digits, _ and -, not starting with pg_",
            )
            .context("setting", "schema")
            .context("value", name));
        }
        Ok(Self(format!("\"{name}\"")))
    }

    /// Puts the schema into a text.
    pub(crate) fn apply(&self, text: &str) -> String {
        text.replace("{schema}", &self.0)
    }
}

/// How text columns are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextMode {
    /// As text: the server makes it UTF-8.
    Text,
    /// As bytes. A `SQL_ASCII` database takes anything as text and refuses to *send* what is no
    /// UTF-8: one such row would fail every claim. As bytes it arrives and is dead-lettered.
    Raw,
}

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("../sql/", $name, ".sql"))
    };
}

pub(crate) const PARTITION_STATE: &str = file!("partition_state");
pub(crate) const PARTITION_LOCK: &str = file!("partition_lock");
pub(crate) const PARTITION_OBSTACLES: &str = file!("partition_obstacles");
pub(crate) const PARTITION_MAKE: &str = file!("partition_make");
pub(crate) const PARTITION_DONE: &str = file!("partition_done");
pub(crate) const PARTITION_DROP: &str = file!("partition_drop");

/// A statement that is made once and run often; cloning it is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Statement(SqlStr);

impl Statement {
    pub(crate) fn text(&self) -> SqlStr {
        self.0.clone()
    }
}

/// Every statement of the queue, for one schema, one way of settling and one way of reading text.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) claim: Statement,
    pub(crate) claim_topics: Statement,
    pub(crate) reclaim: Statement,
    pub(crate) reclaim_topics: Statement,
    pub(crate) done: Statement,
    pub(crate) settle: Statement,
    pub(crate) renew: Statement,
    pub(crate) release: Statement,
    pub(crate) dead_list: Statement,
    pub(crate) dead_get: Statement,
    pub(crate) dead_count: Statement,
    pub(crate) dead_groups: Statement,
    pub(crate) dead_requeue: Statement,
    pub(crate) dead_discard: Statement,
    pub(crate) inspect: Statement,
    pub(crate) failing: Statement,
}

impl Statements {
    pub(crate) fn new(schema: &Schema, done: DoneMode, mode: TextMode) -> Self {
        let done = match done {
            DoneMode::Keep => file!("done_keep"),
            DoneMode::Delete => file!("done_delete"),
        };
        let make = |text: &str, topics: &str, bytes_max: &str| {
            let text = text
                .replace("{topics}", topics)
                .replace("{size}", file!("size"))
                .replace("{documents}", file!("documents"))
                .replace("{bytes_max}", bytes_max)
                .replace("{done}", done)
                .replace("{dead}", file!("dead_where"))
                .replace("{dead_row}", file!("dead_row"))
                .replace("{event}", file!("event"));
            statement(schema.apply(&columns(&text, mode)))
        };
        let plain = |text: &str| make(text, "", "");
        let claim = |text: &str, topics: &str| make(text, topics, "$6");
        Self {
            claim: claim(file!("claim"), ""),
            claim_topics: claim(file!("claim"), file!("topics")),
            reclaim: claim(file!("reclaim"), ""),
            reclaim_topics: claim(file!("reclaim"), file!("topics")),
            done: plain(done),
            settle: plain(file!("settle")),
            renew: plain(file!("renew")),
            release: plain(file!("release")),
            dead_list: plain(file!("dead_list")),
            dead_get: make(file!("dead_get"), "", "$2"),
            dead_count: plain(file!("dead_count")),
            dead_groups: plain(file!("dead_groups")),
            dead_requeue: plain(file!("dead_requeue")),
            dead_discard: plain(file!("dead_discard")),
            inspect: plain(file!("inspect")),
            failing: plain(file!("failing")),
        }
    }
}

/// The statements of a writer.
#[derive(Debug, Clone)]
pub(crate) struct WriterStatements {
    pub(crate) enqueue: Statement,
    pub(crate) enqueue_all: Statement,
    /// The same, and tells which events it wrote. A role needs SELECT for that, so it is used only
    /// where some may be left out.
    pub(crate) enqueue_all_told: Statement,
}

impl WriterStatements {
    pub(crate) fn new(schema: &Schema) -> Self {
        Self {
            enqueue: statement(schema.apply(file!("enqueue"))),
            enqueue_all: statement(schema.apply(file!("enqueue_all"))),
            enqueue_all_told: statement(
                schema.apply(concat!(file!("enqueue_all"), "RETURNING event_id")),
            ),
        }
    }
}

/// Statements that read no event, and so don't depend on the database's encoding.
#[derive(Debug)]
pub(crate) struct SchemaStatements {
    pub(crate) check: Statement,
    pub(crate) encoding: Statement,
    pub(crate) found: Statement,
    pub(crate) version: Statement,
    pub(crate) lock: Statement,
    pub(crate) clean: Statement,
    pub(crate) clean_count: Statement,
    pub(crate) clean_count_dedup: Statement,
    /// The same where whole partitions are dropped.
    pub(crate) clean_old: Statement,
    pub(crate) clean_count_old: Statement,
    pub(crate) partition_state: Statement,
    pub(crate) partition_obstacles: Statement,
    pub(crate) partition_missing: Statement,
    pub(crate) partition_full: Statement,
    pub(crate) partition_over: Statement,
    pub(crate) partition_gone: Statement,
}

impl SchemaStatements {
    pub(crate) fn new(schema: &Schema) -> Self {
        let make = |text: &str| statement(schema.apply(text));
        let clean = |text: &str, may: &str, old: &str| {
            make(
                &text
                    .replace("{seen}", file!("clean_seen"))
                    .replace("{may}", may)
                    .replace("{old}", old),
            )
        };
        let (alone, old) = ("(SELECT alone FROM cleaner)", file!("clean_old"));
        Self {
            check: make(file!("check")),
            encoding: make(file!("encoding")),
            found: make(file!("found")),
            version: make(file!("version")),
            lock: make(file!("migrate_lock")),
            clean: clean(file!("clean"), alone, ""),
            clean_old: clean(file!("clean"), alone, old),
            clean_count: clean(file!("clean_count"), "true", ""),
            clean_count_old: clean(file!("clean_count"), "true", &old.replace("$5", "$4")),
            partition_state: make(PARTITION_STATE),
            partition_obstacles: make(PARTITION_OBSTACLES),
            partition_missing: make(file!("partition_missing")),
            partition_full: make(file!("partition_full")),
            partition_over: make(file!("partition_over")),
            partition_gone: make(file!("partition_gone")),
            clean_count_dedup: make(file!("clean_count_dedup")),
        }
    }
}

/// A text about one partition. Its name is one that the catalog gave and that has digits and `_` only.
pub(crate) fn partition(schema: &Schema, text: &str, name: &str) -> String {
    let text = text
        .replace("{undone}", file!("partition_undone").trim_end())
        .replace(
            "{settings}",
            &settings("'{schema}.queue_default'::regclass"),
        );
    schema.apply(&text).replace("{name}", name)
}

/// The text that makes the plain table one of partitions.
pub(crate) fn conversion(schema: &Schema) -> Statement {
    let text = file!("partition_convert").replace("{settings}", &settings("queue"));
    script(schema, &text)
}

/// The query for the storage settings of a table.
fn settings(of: &str) -> String {
    file!("partition_settings").replace("{of}", of)
}

/// The whole text of a migration.
pub(crate) fn script(schema: &Schema, text: &str) -> Statement {
    statement(schema.apply(text))
}

/// The texts consist of this crate's files and a checked identifier; values are always bound.
fn statement(text: String) -> Statement {
    let text: std::sync::Arc<str> = text.into();
    Statement(sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(text)))
}

/// Completes each `{text(expression)}`.
fn columns(text: &str, mode: TextMode) -> String {
    let mut parts = text.split("{text(");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (expression, rest) = part.split_once(")}").unwrap_or((part, ""));
        match mode {
            TextMode::Text => out.push_str(expression),
            TextMode::Raw => {
                out.push_str("convert_to(");
                out.push_str(expression);
                out.push_str(", 'SQL_ASCII')");
            }
        }
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_names_that_need_escapes_are_refused() {
        for bad in [
            "",
            "a\"b",
            "a'b",
            "a b",
            "a$b",
            "pg_x",
            "a\0",
            "{x}",
            &"x".repeat(64),
        ] {
            assert_eq!(
                Schema::new(bad).unwrap_err().kind(),
                ErrorKind::Configuration,
                "{bad}"
            );
        }
        for good in ["outbox", "Outbox-2", "büro", &"x".repeat(63)] {
            assert_eq!(
                Schema::new(good).unwrap().apply("{schema}"),
                format!("\"{good}\"")
            );
        }
    }

    #[test]
    fn no_placeholder_is_left() {
        let schema = Schema::new("s").unwrap();
        for mode in [TextMode::Text, TextMode::Raw] {
            for done in [DoneMode::Keep, DoneMode::Delete] {
                let all = format!(
                    "{:?} {:?}",
                    Statements::new(&schema, done, mode),
                    SchemaStatements::new(&schema)
                );
                assert!(all.contains("\\\"s\\\".queue"), "{all}");
                for name in [
                    "{schema",
                    "{text",
                    "{event",
                    "{dead",
                    "{done",
                    "{size",
                    "{topics",
                    "{documents",
                    "{seen",
                    "{may",
                    "{old",
                ] {
                    assert!(!all.contains(name), "{name} in {all}");
                }
            }
        }
    }
}
