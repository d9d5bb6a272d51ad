//! Partitions by the time of the insert: made ahead, stray rows moved out of the default one, old ones
//! dropped. Each is one transaction that rather gives up than lets a writer wait.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use outbox_core::{ErrorKind, Result};
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr as _};

use super::Queue;
use crate::{config::Partitions, enqueue::micros, sql};

/// How often partitions are looked after: they are made days ahead, and a lock that was not got must
/// not be tried for again at once.
const INTERVAL: Duration = Duration::from_secs(60);

/// Rows of the default partition that are read and moved under a lock: some 50 ms of work.
const STRAY_ROWS_MAX: i64 = 2_000;

const NOT_OWNED: &str =
    "the table's partitions belong to another role: let it run `outbox purge` once a day";
const STRAYS: &str = "the partition queue_default holds too many rows to move them while writers wait: no partition is made until they are delivered and cleaned";

/// The time that one partition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    Day,
    Month,
}

impl Span {
    fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// Made so far ahead that a cleaner may be away for days.
    fn ahead(self) -> i32 {
        match self {
            Self::Day => 3,
            Self::Month => 2,
        }
    }

    /// Its length, or the longest one.
    fn length(self) -> Duration {
        let days = match self {
            Self::Day => 1,
            Self::Month => 31,
        };
        Duration::from_secs(days * 24 * 3600)
    }
}

/// What was found when partitions were last looked after.
#[derive(Debug, Default)]
pub(crate) struct Upkeep(Mutex<Known>);

#[derive(Debug, Default, Clone, Copy)]
struct Known {
    due: Option<Instant>,
    span: Option<Span>,
    notice: Option<&'static str>,
}

/// What the table is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) partitions: Partitions,
    owned: bool,
}

/// What a step has to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Set where whole partitions are dropped: rows of younger ones are not deleted one by one.
    pub(crate) span: Option<Span>,
    pub(crate) dropped: u64,
    pub(crate) notice: Option<&'static str>,
}

impl Kept {
    /// For the statement that deletes rows.
    pub(crate) fn span_name(self) -> Option<&'static str> {
        self.span.map(Span::name)
    }
}

impl Queue {
    /// Looks after the partitions when it is time.
    pub(crate) async fn keep_partitions(&self, retention: Duration) -> Result<Kept> {
        let now = Instant::now();
        let known = *self.upkeep.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.due.is_some_and(|due| now < due) {
            return Ok(Kept {
                span: drops(known.span, retention),
                dropped: 0,
                notice: known.notice,
            });
        }
        let (span, mut notice) = self.owned_span().await?;
        let mut dropped = 0;
        if let Some(span) = span {
            if !self.make_partitions(span).await? {
                notice = Some(STRAYS);
            }
            if drops(Some(span), retention).is_some() {
                dropped = u64::from(self.drop_oldest(retention).await?);
            }
        }
        // The next old one goes with the next step.
        let due = (dropped == 0).then_some(now + INTERVAL);
        *self.upkeep.0.lock().unwrap_or_else(PoisonError::into_inner) = Known { due, span, notice };
        Ok(Kept {
            span: drops(span, retention),
            dropped,
            notice,
        })
    }

    /// The name of the span, where whole partitions of that age would be dropped.
    pub(crate) async fn span_of_cleaning(
        &self,
        retention: Duration,
    ) -> Result<Option<&'static str>> {
        let (span, _) = self.owned_span().await?;
        Ok(drops(span, retention).map(Span::name))
    }

    /// How long partitions are, where there are any and this role may change them, and what to tell of it.
    async fn owned_span(&self) -> Result<(Option<Span>, Option<&'static str>)> {
        let Table { partitions, owned } = self.table().await?;
        let span = match partitions {
            Partitions::None => return Ok((None, None)),
            Partitions::Daily => Span::Day,
            Partitions::Monthly => Span::Month,
        };
        let notice = (!owned).then_some(NOT_OWNED);
        Ok((owned.then_some(span), notice))
    }

    /// What the catalog tells of the table.
    pub(super) async fn table(&self) -> Result<Table> {
        const OPERATION: &str = "look at partitions";
        let query = sqlx::query(self.schema_statements.partition_state.text());
        let row = self.database.row(OPERATION, query).await?;
        let is = |name: &str| {
            let value = row.try_get::<bool, _>(name);
            value.map_err(|error| self.database.fail(OPERATION, &error))
        };
        let partitions = match self.config.partitions {
            _ if !is("partitioned")? => Partitions::None,
            _ if is("monthly")? => Partitions::Monthly,
            _ if is("daily")? => Partitions::Daily,
            // All were dropped since somebody last made some.
            Some(Partitions::Monthly) => Partitions::Monthly,
            _ => Partitions::Daily,
        };
        let owned = is("owned")?;
        Ok(Table { partitions, owned })
    }

    /// False when the default partition is too full for that.
    async fn make_partitions(&self, span: Span) -> Result<bool> {
        const OPERATION: &str = "make a partition";
        let query = sqlx::query(self.schema_statements.partition_missing.text())
            .bind(span.name())
            .bind(span.ahead())
            .bind(STRAY_ROWS_MAX);
        let missing = self.database.rows(OPERATION, query).await?;
        for row in &missing {
            let text = |name: &str| {
                let value = row.try_get::<String, _>(name);
                value.map_err(|error| self.database.fail(OPERATION, &error))
            };
            let statement = sql::partition(&self.schema, sql::PARTITION_MAKE, &text("name")?)
                .replace("{lower}", &text("lower_bound")?)
                .replace("{upper}", &text("upper_bound")?);
            self.unless_locked(OPERATION, statement).await?;
        }
        let full = sqlx::query(self.schema_statements.partition_full.text()).bind(STRAY_ROWS_MAX);
        let row = self.database.row(OPERATION, full).await?;
        let full: bool = row
            .try_get("full")
            .map_err(|error| self.database.fail(OPERATION, &error))?;
        Ok(!full)
    }

    /// Drops the oldest partition of which nothing is needed any more; whether there was one.
    async fn drop_oldest(&self, retention: Duration) -> Result<bool> {
        const OPERATION: &str = "drop a partition";
        let query =
            sqlx::query(self.schema_statements.partition_over.text()).bind(micros(retention));
        for row in self.database.rows(OPERATION, query).await? {
            let wrong = |error: sqlx::Error| self.database.fail(OPERATION, &error);
            let name: String = row.try_get("name").map_err(wrong)?;
            let text = sql::partition(&self.schema, sql::PARTITION_DONE, &name);
            let query = sqlx::query(AssertSqlSafe(text).into_sql_str()).bind(micros(retention));
            let done = match self.database.row(OPERATION, query).await {
                Ok(row) => row.try_get("done").map_err(wrong)?,
                // Too large to be read whole: its rows go one by one.
                Err(error) if error.kind() == ErrorKind::Timeout => false,
                Err(error) => return Err(error),
            };
            if !done {
                continue;
            }
            let statement = sql::partition(&self.schema, sql::PARTITION_DROP, &name);
            self.unless_locked(OPERATION, statement).await?;
            let query = sqlx::query(self.schema_statements.partition_gone.text()).bind(&name);
            let row = self.database.row(OPERATION, query).await?;
            return row.try_get("gone").map_err(wrong);
        }
        Ok(false)
    }

    /// Runs it, unless a lock was not got in time or another cleaner did it: then a later step will.
    async fn unless_locked(&self, operation: &'static str, text: String) -> Result<()> {
        match self.database.script(operation, text).await {
            Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Conflict) => {
                Ok(())
            }
            other => other,
        }
    }
}

/// Rows are deleted one by one where they are not kept as long as a partition is.
fn drops(span: Option<Span>, retention: Duration) -> Option<Span> {
    span.filter(|span| retention >= span.length())
}
