//! Rows of the log: written once, never changed.

use std::time::Duration;

use outbox_core::{Error, ErrorKind, Event, Position, StoredEvent, Unreadable};
use uuid::Uuid;

use super::clock::wall;

/// What was inserted.
#[derive(Debug)]
pub(super) enum Body {
    Event(Box<Event>),
    /// A row that some other writer made and that is no event.
    Unreadable {
        id: Uuid,
        topic: String,
        key: Option<String>,
        why: String,
    },
}

/// A committed row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) position: i64,
    pub(super) body: Body,
    pub(super) created: Duration,
    /// As batch limits count it.
    pub(super) bytes: usize,
}

/// The counters that a claim hands out with a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counters {
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    pub(super) failing_for: Option<Duration>,
}

impl Row {
    pub(super) fn new(position: i64, body: Body, created: Duration) -> Self {
        let mut row = Self {
            position,
            body,
            created,
            bytes: 0,
        };
        row.bytes = row.read(ZERO).map_or(0, |event| event.byte_len());
        row
    }

    pub(super) fn id(&self) -> Uuid {
        match &self.body {
            Body::Event(event) => event.id(),
            Body::Unreadable { id, .. } => *id,
        }
    }

    pub(super) fn topic(&self) -> &str {
        match &self.body {
            Body::Event(event) => event.topic(),
            Body::Unreadable { topic, .. } => topic,
        }
    }

    pub(super) fn key(&self) -> Option<&str> {
        match &self.body {
            Body::Event(event) => event.key(),
            Body::Unreadable { key, .. } => key.as_deref(),
        }
    }

    pub(super) fn event_type(&self) -> &str {
        match &self.body {
            Body::Event(event) => event.event_type(),
            Body::Unreadable { .. } => "",
        }
    }

    /// When it may first be sent. One that was not put off is due whatever the clock says: set back,
    /// it must not let later events pass.
    pub(super) fn due(&self) -> Duration {
        match &self.body {
            Body::Event(event) => event
                .deliver_after()
                .map_or(Duration::ZERO, |after| self.created.saturating_add(after)),
            Body::Unreadable { .. } => Duration::ZERO,
        }
    }

    /// The same event with other bytes, as a broken store would keep it.
    pub(super) fn changed(&self) -> Self {
        let body = match &self.body {
            Body::Event(event) => {
                let builder = Event::new(event.topic(), event.event_type()).id(event.id());
                let builder = match event.key() {
                    Some(key) => builder.key(key),
                    None => builder,
                };
                match builder.bytes("changed") {
                    Ok(changed) => Body::Event(Box::new(changed)),
                    Err(_) => Body::Event(event.clone()),
                }
            }
            Body::Unreadable {
                id,
                topic,
                key,
                why,
            } => Body::Unreadable {
                id: *id,
                topic: topic.clone(),
                key: key.clone(),
                why: why.clone(),
            },
        };
        Self::new(self.position, body, self.created)
    }

    /// The event, or why it can't be read.
    pub(super) fn read(&self, counters: Counters) -> Result<StoredEvent, Unreadable> {
        let position = Position(self.position);
        match &self.body {
            Body::Event(event) => Ok(StoredEvent {
                attempts: counters.attempts,
                crashes: counters.crashes,
                failing_for: counters.failing_for,
                ..StoredEvent::from_event(event, position, wall(self.created))
            }),
            Body::Unreadable { key, why, .. } => Err(Unreadable {
                position,
                key: key.clone(),
                error: Error::new(ErrorKind::InvalidEvent, "read row", why.clone())
                    .context("position", position),
            }),
        }
    }
}

const ZERO: Counters = Counters {
    attempts: 0,
    crashes: 0,
    failing_for: None,
};
