//! Rows as events. A row that SQL wrote may hold anything that the table's constraints allow, so
//! nothing here trusts a value (I2): what can't be an event is told as such.

use std::time::Duration;

use bytes::Bytes;
use outbox_core::{
    Error, ErrorKind, FailureNote, Headers, Position, Result, StoredEvent, Unreadable,
};
use sqlx::{Row as _, postgres::PgRow};
use time::OffsetDateTime;
use uuid::Uuid;

/// Columns of `sql/event.sql`, in its order.
#[repr(usize)]
#[derive(Clone, Copy)]
enum Column {
    Id,
    EventId,
    Topic,
    Key,
    EventType,
    EventVersion,
    AggregateType,
    AggregateId,
    ContentType,
    Headers,
    Payload,
    PayloadBytes,
    Bytes,
    CreatedAt,
    Attempts,
    Crashes,
    FirstFailedAt,
    ReadAt,
    NextAttemptAt,
}

/// How many columns `sql/event.sql` has: what a statement adds comes behind them.
pub(crate) const COLUMNS: usize = Column::NextAttemptAt as usize + 1;

/// A row that was read.
pub(crate) struct ReadRow {
    /// When it was due: what claims sort by.
    pub(crate) due_us: i64,
    /// The database's clock.
    pub(crate) read_at_us: i64,
    pub(crate) position: Position,
    pub(crate) event: Result<StoredEvent, Unreadable>,
}

/// Reads a row that begins with the columns of `sql/event.sql`.
///
/// # Errors
/// `Protocol` when it has not got them. What is wrong with their values is in [`ReadRow::event`].
pub(crate) fn read(row: &PgRow, bytes_max: usize) -> Result<ReadRow> {
    let position = Position(int8(row, Column::Id)?);
    Ok(ReadRow {
        due_us: int8(row, Column::NextAttemptAt)?,
        read_at_us: int8(row, Column::ReadAt)?,
        position,
        event: event(row, position, bytes_max).map_err(|error| Unreadable {
            position,
            key: raw(row, Column::Key).map(lossy),
            error: error.context("row", position),
        }),
    })
}

fn event(row: &PgRow, position: Position, bytes_max: usize) -> Result<StoredEvent> {
    let stored_bytes = int4(row, Column::Bytes)?;
    if usize::try_from(stored_bytes).unwrap_or(usize::MAX) > bytes_max {
        return Err(StoredEvent::too_large(stored_bytes, bytes_max));
    }
    let read_at_us = int8(row, Column::ReadAt)?;
    let headers = match raw(row, Column::Headers) {
        Some(json) => std::str::from_utf8(json)
            .map_err(|_| invalid("headers can't be read as JSON"))
            .and_then(Headers::parse_json)?,
        None => Headers::new(),
    };
    let payload = raw(row, Column::PayloadBytes).or_else(|| raw(row, Column::Payload));
    let event = StoredEvent {
        position,
        id: uuid(row, Column::EventId)?,
        topic: required(row, Column::Topic, "topic is no UTF-8")?,
        key: text(row, Column::Key, "key is no UTF-8")?,
        event_type: required(row, Column::EventType, "event type is no UTF-8")?,
        event_version: u32::try_from(int4(row, Column::EventVersion)?)
            .map_err(|_| invalid("event version is below zero"))?,
        aggregate_type: text(row, Column::AggregateType, "aggregate type is no UTF-8")?,
        aggregate_id: text(row, Column::AggregateId, "aggregate id is no UTF-8")?,
        content_type: text(row, Column::ContentType, "content type is no UTF-8")?,
        payload: payload.map(Bytes::copy_from_slice),
        headers,
        created_at: instant(int8(row, Column::CreatedAt)?)
            .ok_or_else(|| invalid("created_at is outside the calendar"))?,
        attempts: u32::try_from(int4(row, Column::Attempts)?).unwrap_or(0),
        crashes: u32::try_from(int4(row, Column::Crashes)?).unwrap_or(0),
        failing_for: optional_int8(row, Column::FirstFailedAt).map(|since_us| {
            let us = read_at_us.saturating_sub(since_us);
            Duration::from_micros(u64::try_from(us).unwrap_or(0))
        }),
    };
    event.check_read(bytes_max)?;
    Ok(event)
}

const READ: &str = "read event";

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidEvent, READ, what)
}

fn unknown_form() -> Error {
    Error::new(
        ErrorKind::Protocol,
        READ,
        "the server's answer has an unknown form",
    )
}

fn raw(row: &PgRow, column: Column) -> Option<&[u8]> {
    raw_at(row, column as usize)
}

pub(crate) fn raw_at(row: &PgRow, index: usize) -> Option<&[u8]> {
    row.try_get_raw(index).ok()?.as_bytes().ok()
}

fn fixed<const N: usize>(row: &PgRow, column: Column) -> Result<[u8; N]> {
    raw(row, column)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(unknown_form)
}

fn int8(row: &PgRow, column: Column) -> Result<i64> {
    fixed(row, column).map(i64::from_be_bytes)
}

fn int4(row: &PgRow, column: Column) -> Result<i32> {
    fixed(row, column).map(i32::from_be_bytes)
}

fn uuid(row: &PgRow, column: Column) -> Result<Uuid> {
    fixed(row, column).map(Uuid::from_bytes)
}

fn optional_int8(row: &PgRow, column: Column) -> Option<i64> {
    raw(row, column)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i64::from_be_bytes)
}

fn text(row: &PgRow, column: Column, what: &'static str) -> Result<Option<String>> {
    raw(row, column)
        .map(|bytes| {
            std::str::from_utf8(bytes)
                .map(ToOwned::to_owned)
                .map_err(|error| invalid(what).context("at_byte", error.valid_up_to()))
        })
        .transpose()
}

fn required(row: &PgRow, column: Column, what: &'static str) -> Result<String> {
    text(row, column, what)?.ok_or_else(unknown_form)
}

/// Text of a row that may not be readable as an event, as far as it goes.
pub(crate) fn lossy_text(row: &PgRow, name: &str) -> Option<String> {
    row.try_get_raw(name).ok()?.as_bytes().ok().map(lossy)
}

/// What `error_kind` and `error` remember of a failure.
pub(crate) fn note(row: &PgRow) -> FailureNote {
    FailureNote::new(
        error_kind(row),
        &lossy_text(row, "error").unwrap_or_default(),
    )
}

pub(crate) fn error_kind(row: &PgRow) -> Option<ErrorKind> {
    lossy_text(row, "error_kind").and_then(|kind| ErrorKind::parse(&kind))
}

/// Text for people, whatever its bytes.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The instant of a PostgreSQL timestamp: microseconds from the year 2000. `None` for `infinity` and
/// for years that can't be written with four digits.
pub(crate) fn instant(us: i64) -> Option<OffsetDateTime> {
    const EPOCH_2000_S: i64 = 946_684_800;
    OffsetDateTime::from_unix_timestamp(EPOCH_2000_S)
        .ok()?
        .checked_add(time::Duration::microseconds(us))
        .filter(|_| us != i64::MAX && us != i64::MIN)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn timestamps_outside_the_calendar_are_none() {
        assert_eq!(instant(0), Some(datetime!(2000-01-01 0:00 UTC)));
        assert_eq!(
            instant(-1_000_000),
            Some(datetime!(1999-12-31 23:59:59 UTC))
        );
        for us in [i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            assert_eq!(instant(us), None, "{us}");
        }
    }
}
