//! What happened in a run, gathered by the test.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use outbox_core::{Event, Headers, StoredEvent};
use uuid::Uuid;

use super::facts::{Fact, Moment, Rules};

/// A message as a consumer saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The event id.
    pub id: Uuid,
    /// Where it was seen.
    pub topic: String,
    /// The key.
    pub key: Option<String>,
    /// The event type.
    pub event_type: String,
    /// The payload.
    pub payload: Option<Bytes>,
    /// User headers.
    pub headers: Headers,
}

impl From<StoredEvent> for Sighting {
    fn from(event: StoredEvent) -> Self {
        Self {
            id: event.id,
            topic: event.topic,
            key: event.key,
            event_type: event.event_type,
            payload: event.payload,
            headers: event.headers,
        }
    }
}

impl From<&Event> for Sighting {
    fn from(event: &Event) -> Self {
        Self {
            id: event.id(),
            topic: event.topic().to_owned(),
            key: event.key().map(ToOwned::to_owned),
            event_type: event.event_type().to_owned(),
            payload: event.payload().cloned(),
            headers: event.headers().clone(),
        }
    }
}

/// The facts to be judged by [`check`](super::check()).
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Events whose commit was acknowledged to the writer; of one key in commit order.
    pub committed: Vec<Event>,
    /// Events that were rolled back.
    pub rolled_back: BTreeSet<Uuid>,
    /// Events whose commit was asked for and never answered: either is right.
    pub in_doubt: Vec<Event>,
    /// Dead letters that an operator can see at the end.
    pub dead: BTreeSet<Uuid>,
    /// What consumers saw, of one key in the order of the broker, copies included.
    pub seen: Vec<Sighting>,
    /// Events that wait at the end behind a dead one of their key.
    pub held: BTreeSet<Uuid>,
    /// Dead letters that an operator removed.
    pub discarded: BTreeSet<Uuid>,
    /// From how many sightings on, later events of its key may be seen before this one: it was
    /// discarded, died under a policy that skips, or was put off by its producer.
    pub passable: BTreeMap<Uuid, usize>,
    /// A later and an earlier event of a key: the broker refused the earlier one when both were in
    /// flight, the one exception to I5.
    pub excused: BTreeSet<(Uuid, Uuid)>,
    /// What relays did, in order, where that could be watched.
    pub facts: Vec<(Moment, Fact)>,
    /// By what the facts are judged.
    pub rules: Rules,
}
