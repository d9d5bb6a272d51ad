//! Dead letters: events that are not tried again without an operator.

use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    error::{ErrorKind, Result},
    store::{DeadReason, FailureNote, Position},
    stored_event::StoredEvent,
};

/// Which dead letters are meant: those that fit every part that is set. Empty: all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// These event ids.
    pub ids: Vec<Uuid>,
    /// This topic.
    pub topic: Option<String>,
    /// This key.
    pub key: Option<String>,
    /// This event type.
    pub event_type: Option<String>,
    /// This kind of error at the last attempt.
    pub error_kind: Option<ErrorKind>,
    /// Dead for at least this long, on the database's clock.
    pub dead_for: Option<Duration>,
}

/// A part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Behind this position; `None` from the start.
    pub after: Option<Position>,
    /// Rows at the most.
    pub limit: u32,
}

/// A line of the list of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadSummary {
    /// Where it stands in its store.
    pub position: Position,
    /// Its id.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// Its type.
    pub event_type: String,
    /// Attempts made.
    pub attempts: u32,
    /// The class of the reason.
    pub reason: DeadReason,
    /// What the last attempt said.
    pub note: FailureNote,
    /// When it was inserted.
    pub created_at: OffsetDateTime,
    /// When it died.
    pub dead_at: OffsetDateTime,
}

/// A dead letter with its event.
#[derive(Debug)]
pub struct DeadLetter {
    /// What the list shows.
    pub summary: DeadSummary,
    /// The event, or why it can't be read.
    pub event: Result<StoredEvent>,
}

/// Dead letters that are alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadGroup {
    /// Their topic.
    pub topic: String,
    /// Their event type.
    pub event_type: String,
    /// The kind of error at their last attempt.
    pub error_kind: Option<ErrorKind>,
    /// How many there are.
    pub count: u64,
}

/// What operators do with dead letters. Object-safe; every call has bounded cost.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Dead letters by position, one page.
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>>;

    /// One dead letter with its event; `None` when there is none of this id.
    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>>;

    /// How many there are: what a bulk call would touch, for dry runs and progress.
    async fn count(&self, filter: &DeadFilter) -> Result<u64>;

    /// How many there are of each topic, type and kind of error, the largest groups first and at
    /// most `limit` of them: what a bulk call would touch, for people. Changes nothing.
    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>>;

    /// Puts up to `limit` of them back, oldest first, with attempts and crashes at zero; returns how
    /// many. Keys keep their order in ordered stores. Repeat until it returns less than the limit.
    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64>;

    /// Removes up to `limit` of them for ever, oldest first; returns how many. Frees held keys.
    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64>;
}

/// The trait can be used as `dyn`.
const _: Option<&dyn DeadLetters> = None;
