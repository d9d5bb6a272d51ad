//! Rows into events.

use std::time::Duration;

use bytes::Bytes;
use outbox_core::{
    Error, ErrorKind, FailureNote, Headers, Position, Result, StoredEvent, Unreadable,
};
use sqlx::{Row as _, sqlite::SqliteRow};
use time::OffsetDateTime;
use uuid::Uuid;

/// What [`read`] needs. `?1` is the bytes of one event at the most: a larger one is not loaded.
macro_rules! event_columns {
    () => {
        "id, event_id, topic, order_key, event_type, event_version, aggregate_type, aggregate_id,
        coalesce(content_type, CASE WHEN typeof(payload) = 'text' THEN 'application/json' END) AS content_type,
        CASE WHEN bytes <= ?1 THEN headers END AS headers,
        CASE WHEN bytes <= ?1 THEN CAST(payload AS BLOB) END AS payload,
        bytes, created_at, attempts, crashes, first_failed_at"
    };
}
pub(crate) use event_columns;

const READ: &str = "read event";

/// Reads a row that has the columns of [`event_columns!`].
///
/// # Errors
/// `Protocol` when it has not got them. What is wrong with their values is in the answer.
pub(crate) fn read(
    row: &SqliteRow,
    bytes_max: usize,
    now: i64,
) -> Result<Result<StoredEvent, Unreadable>> {
    let position = Position(number(row, "id")?);
    Ok(
        event(row, position, bytes_max, now).map_err(|error| Unreadable {
            position,
            key: lossy_text(row, "order_key"),
            error: error.context("row", position),
        }),
    )
}

fn event(row: &SqliteRow, position: Position, bytes_max: usize, now: i64) -> Result<StoredEvent> {
    let stored_bytes = number(row, "bytes")?;
    if usize::try_from(stored_bytes).unwrap_or(usize::MAX) > bytes_max {
        return Err(StoredEvent::too_large(stored_bytes, bytes_max));
    }
    let headers = match raw(row, "headers") {
        Some(json) => std::str::from_utf8(json)
            .map_err(|_| invalid("headers can't be read as JSON"))
            .and_then(Headers::parse_json)?,
        None => Headers::new(),
    };
    let counter = |name| number(row, name).map(|value| u32::try_from(value).unwrap_or(0));
    let event = StoredEvent {
        position,
        id: event_id(row)?,
        topic: text(row, "topic", "topic is no UTF-8")?.ok_or_else(unknown_form)?,
        key: text(row, "order_key", "key is no UTF-8")?,
        event_type: text(row, "event_type", "event type is no UTF-8")?.ok_or_else(unknown_form)?,
        event_version: u32::try_from(number(row, "event_version")?)
            .map_err(|_| invalid("event version is out of its range"))?,
        aggregate_type: text(row, "aggregate_type", "aggregate type is no UTF-8")?,
        aggregate_id: text(row, "aggregate_id", "aggregate id is no UTF-8")?,
        content_type: text(row, "content_type", "content type is no UTF-8")?,
        payload: payload(row),
        headers,
        created_at: instant(number(row, "created_at")?)
            .ok_or_else(|| invalid("created_at is outside the calendar"))?,
        attempts: counter("attempts")?,
        crashes: counter("crashes")?,
        failing_for: optional_number(row, "first_failed_at").map(|since| elapsed(since, now)),
    };
    event.check_read(bytes_max)?;
    Ok(event)
}

fn payload(row: &SqliteRow) -> Option<Bytes> {
    raw(row, "payload").map(Bytes::copy_from_slice)
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidEvent, READ, what)
}

pub(crate) fn unknown_form() -> Error {
    Error::new(
        ErrorKind::Protocol,
        READ,
        "the database's answer has an unknown form",
    )
}

/// The bytes of a text or blob; `None` for null.
fn raw<'r>(row: &'r SqliteRow, name: &str) -> Option<&'r [u8]> {
    row.try_get_unchecked::<Option<&[u8]>, _>(name).ok()?
}

pub(crate) fn number(row: &SqliteRow, name: &str) -> Result<i64> {
    row.try_get_unchecked(name).map_err(|_| unknown_form())
}

pub(crate) fn optional_number(row: &SqliteRow, name: &str) -> Option<i64> {
    row.try_get_unchecked(name).ok()?
}

pub(crate) fn event_id(row: &SqliteRow) -> Result<Uuid> {
    raw(row, "event_id")
        .and_then(|bytes| Uuid::try_parse_ascii(bytes).ok())
        .ok_or_else(unknown_form)
}

fn text(row: &SqliteRow, name: &str, what: &'static str) -> Result<Option<String>> {
    raw(row, name)
        .map(|bytes| {
            std::str::from_utf8(bytes)
                .map(ToOwned::to_owned)
                .map_err(|error| invalid(what).context("at_byte", error.valid_up_to()))
        })
        .transpose()
}

/// Text of a row that may not be readable as an event, as far as it goes.
pub(crate) fn lossy_text(row: &SqliteRow, name: &str) -> Option<String> {
    raw(row, name).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// What `error_kind` and `error` remember of a failure.
pub(crate) fn note(row: &SqliteRow) -> FailureNote {
    FailureNote::new(
        error_kind(row),
        &lossy_text(row, "error").unwrap_or_default(),
    )
}

pub(crate) fn error_kind(row: &SqliteRow) -> Option<ErrorKind> {
    lossy_text(row, "error_kind").and_then(|kind| ErrorKind::parse(&kind))
}

/// The time from one moment of the database's clock to another; never negative.
pub(crate) fn elapsed(since: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now.saturating_sub(since)).unwrap_or(0))
}

/// The instant of a moment of the database's clock; `None` outside the calendar.
pub(crate) fn instant(ms: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::UNIX_EPOCH.checked_add(time::Duration::milliseconds(ms))
}
