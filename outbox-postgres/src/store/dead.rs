//! Dead letters: the rows whose status is `failed`.

use async_trait::async_trait;
use outbox_core::{
    DeadFilter, DeadGroup, DeadLetter, DeadLetters, DeadReason, DeadSummary, Error, ErrorKind,
    Page, Position, Result,
};
use sqlx::{
    Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    PgQueue,
    database::needing,
    row::{self, error_kind, instant, lossy_text, note},
};
use crate::{enqueue::micros, sql::Statement};

/// The statement with the filter as its first parameters.
fn filtered<'q>(statement: &Statement, filter: &'q DeadFilter) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(statement.text())
        .bind((!filter.ids.is_empty()).then_some(&filter.ids))
        .bind(&filter.topic)
        .bind(&filter.key)
        .bind(&filter.event_type)
        .bind(filter.error_kind.map(ErrorKind::as_str))
        .bind(filter.dead_for.map(micros))
}

#[async_trait]
impl DeadLetters for PgQueue {
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>> {
        let statements = self.0.statements().await?;
        let query = filtered(&statements.dead_list, filter)
            .bind(page.after.map(|position| position.0))
            .bind(i64::from(page.limit));
        let rows = self.0.database.rows("list dead letters", query).await?;
        rows.iter().map(summary).collect()
    }

    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>> {
        let statements = self.0.statements().await?;
        let bytes_max = self.0.config.event_bytes_max;
        let query = sqlx::query(statements.dead_get.text())
            .bind(event_id)
            .bind(i64::try_from(bytes_max).unwrap_or(i64::MAX));
        let rows = self.0.database.rows("read dead letter", query).await?;
        rows.first()
            .map(|row| {
                Ok(DeadLetter {
                    summary: summary(row)?,
                    event: row::read(row, bytes_max)?
                        .event
                        .map_err(|unreadable| unreadable.error),
                })
            })
            .transpose()
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        let statements = self.0.statements().await?;
        let row = self
            .0
            .database
            .row(
                "count dead letters",
                filtered(&statements.dead_count, filter),
            )
            .await?;
        let count: i64 = row.try_get(0).map_err(|_| unknown_form())?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>> {
        let statements = self.0.statements().await?;
        let query = filtered(&statements.dead_groups, filter).bind(i64::from(limit));
        let rows = self.0.database.rows("group dead letters", query).await?;
        rows.iter()
            .map(|row| {
                let count: i64 = row.try_get("dead_count").map_err(|_| unknown_form())?;
                Ok(DeadGroup {
                    topic: lossy_text(row, "dead_topic").unwrap_or_default(),
                    event_type: lossy_text(row, "dead_event_type").unwrap_or_default(),
                    error_kind: error_kind(row),
                    count: u64::try_from(count).unwrap_or(0),
                })
            })
            .collect()
    }

    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        let statements = self.0.statements().await?;
        let query = filtered(&statements.dead_requeue, filter).bind(i64::from(limit));
        self.0.database.execute("requeue dead letters", query).await
    }

    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        let statements = self.0.statements().await?;
        let query = filtered(&statements.dead_discard, filter).bind(i64::from(limit));
        let discarded = self.0.database.execute("discard dead letters", query);
        discarded
            .await
            .map_err(needing("DELETE on the table queue"))
    }
}

/// A line of the list. It is also made of rows that can't be read as events, so text is taken as
/// far as it goes.
fn summary(row: &PgRow) -> Result<DeadSummary> {
    let text = |name: &str| lossy_text(row, name);
    let time = |name: &str| -> Result<OffsetDateTime> {
        let bytes = row
            .try_get_raw(name)
            .ok()
            .and_then(|value| value.as_bytes().ok());
        let us = bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map(i64::from_be_bytes)
            .ok_or_else(unknown_form)?;
        // SQL may have written `infinity`.
        Ok(instant(us).unwrap_or(OffsetDateTime::UNIX_EPOCH))
    };
    let attempts: i32 = row.try_get("dead_attempts").map_err(|_| unknown_form())?;
    Ok(DeadSummary {
        position: Position(row.try_get("dead_position").map_err(|_| unknown_form())?),
        event_id: row.try_get("dead_event_id").map_err(|_| unknown_form())?,
        topic: text("dead_topic").unwrap_or_default(),
        key: text("dead_key"),
        event_type: text("dead_event_type").unwrap_or_default(),
        attempts: u32::try_from(attempts).unwrap_or(0),
        // A row that SQL set to `failed` has none: somebody refused it.
        reason: text("dead_reason")
            .and_then(|reason| DeadReason::parse(&reason))
            .unwrap_or(DeadReason::Rejected),
        note: note(row),
        created_at: time("dead_created_at")?,
        dead_at: time("dead_at")?,
    })
}

fn unknown_form() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "read dead letter",
        "the server's answer has an unknown form",
    )
}
