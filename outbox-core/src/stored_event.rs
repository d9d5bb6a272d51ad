//! The event as a store hands it to a publisher.

use std::{fmt, time::Duration};

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    error::{Error, ErrorKind, Result},
    event::{Event, byte_len, check_fields},
    headers::Headers,
    limits::InvalidEvent,
    store::Position,
};

/// An event as a store hands it out. Plain data: a store's author builds it from a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Where it stands in its store; unique there, and rising in commit order in ordered stores.
    pub position: Position,
    /// The id by which consumers drop copies.
    pub id: Uuid,
    /// Where it goes.
    pub topic: String,
    /// What orders it; `None` is not the same as empty.
    pub key: Option<String>,
    /// What happened.
    pub event_type: String,
    /// The schema version of the type.
    pub event_version: u32,
    /// What kind of thing it happened to.
    pub aggregate_type: Option<String>,
    /// Which one it happened to.
    pub aggregate_id: Option<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The payload, byte for byte; `None` is a tombstone.
    pub payload: Option<Bytes>,
    /// User headers.
    pub headers: Headers,
    /// When it was inserted, on the database's clock.
    pub created_at: OffsetDateTime,
    /// Which attempt this is, counted by the claim before the work (I9): 1 at the first.
    pub attempts: u32,
    /// How many times a process died, or lost its lease, with this event in flight.
    pub crashes: u32,
    /// How long ago it first failed, on the database's clock; `None` when it has not.
    pub failing_for: Option<Duration>,
}

impl StoredEvent {
    /// The event as a store sees it at its first claim.
    pub fn from_event(event: &Event, position: Position, created_at: OffsetDateTime) -> Self {
        Self {
            position,
            id: event.id(),
            topic: event.topic().to_owned(),
            key: event.key().map(ToOwned::to_owned),
            event_type: event.event_type().to_owned(),
            event_version: event.event_version(),
            aggregate_type: event.aggregate_type().map(ToOwned::to_owned),
            aggregate_id: event.aggregate_id().map(ToOwned::to_owned),
            content_type: event.content_type().map(ToOwned::to_owned),
            payload: event.payload().cloned(),
            headers: event.headers().clone(),
            created_at,
            attempts: 1,
            crashes: 0,
            failing_for: None,
        }
    }

    /// Checks what a writer of rows may have got wrong: stores call it on what they read, since
    /// SQL writes rows that no [`EventBuilder`](crate::EventBuilder) has seen. Sizes are not checked; brokers differ.
    ///
    /// # Errors
    /// [`InvalidEvent`] names the field that is malformed.
    pub fn check(&self) -> Result<(), InvalidEvent> {
        let texts = [
            ("key", &self.key, usize::MAX),
            ("aggregate type", &self.aggregate_type, usize::MAX),
            ("aggregate id", &self.aggregate_id, usize::MAX),
            ("content type", &self.content_type, usize::MAX),
        ];
        check_fields(
            [("topic", &self.topic), ("event type", &self.event_type)],
            self.event_version,
            texts,
            &self.headers,
            usize::MAX,
        )
    }

    /// [`check`](Self::check), and that the event is within a store's limit, counted as a writer counts:
    /// a key that the store took from the aggregate id is one field of the writer's.
    ///
    /// # Errors
    /// `InvalidEvent` names the field that is malformed; `TooLarge` as [`too_large`](Self::too_large).
    pub fn check_read(&self, bytes_max: usize) -> Result<()> {
        self.check()?;
        let derived = self
            .key
            .as_ref()
            .filter(|key| Some(*key) == self.aggregate_id.as_ref());
        let bytes = self.byte_len() - derived.map_or(0, String::len);
        if bytes > bytes_max {
            return Err(Self::too_large(bytes, bytes_max));
        }
        Ok(())
    }

    /// What a store says of an event of so many bytes, also where it did not load it.
    pub fn too_large(bytes: impl fmt::Display, limit: usize) -> Error {
        Error::new(
            ErrorKind::TooLarge,
            "read event",
            "the event is over the store's limit",
        )
        .context("bytes", bytes)
        .context("limit", limit)
    }

    /// Payload, headers and names together, in bytes: what batch limits count.
    pub fn byte_len(&self) -> usize {
        byte_len(
            [&self.topic, &self.event_type],
            [
                &self.key,
                &self.aggregate_type,
                &self.aggregate_id,
                &self.content_type,
            ],
            &self.headers,
            self.payload.as_ref(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_events_are_checked_whoever_wrote_them() {
        let event = Event::new("t", "T").key("").bytes("x").unwrap();
        let stored = StoredEvent::from_event(&event, Position(1), OffsetDateTime::UNIX_EPOCH);
        assert_eq!(stored.check(), Ok(()));
        let changes: [fn(&mut StoredEvent); 5] = [
            |e| e.topic.clear(),
            |e| e.event_type = "a\nb".to_owned(),
            |e| e.key = Some("\0".to_owned()),
            |e| e.event_version = 0,
            |e| e.headers.push("Event-Id", "1"),
        ];
        for change in changes {
            let mut wrong = stored.clone();
            change(&mut wrong);
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_taken_from_the_aggregate_id_is_counted_once() {
        let event = Event::new("t", "T").aggregate("order", "4711");
        let event = event.bytes("x").unwrap();
        let stored = StoredEvent::from_event(&event, Position(1), OffsetDateTime::UNIX_EPOCH);
        assert_eq!(stored.key, stored.aggregate_id);
        let bytes = stored.byte_len() - "4711".len();
        stored.check_read(bytes).unwrap();
        let error = stored.check_read(bytes - 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
