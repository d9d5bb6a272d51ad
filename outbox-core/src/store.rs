//! The contract between the relay engine and a database that holds the outbox.
//!
//! Object-safe, so that a program can choose its store at run time. Read [`Lane`] first.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    dead::DeadLetters,
    error::{Error, ErrorKind, Result},
    inspect::Inspect,
    retention::Retention,
    stored_event::StoredEvent,
    topic::TopicSet,
};

/// Where an event stands in its store. In ordered stores positions rise in commit order per key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub i64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fence of one claimed batch. Opaque to the engine; unique among all claims ever made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchToken(pub Uuid);

/// Who holds leases: one running relay. Two relays must never share one, and a restarted relay is
/// a new one; recovery depends on lease ends alone, never on this name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub String);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lane within a route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub String);

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a relay asks for when it looks for work.
#[derive(Debug, Clone)]
pub struct AcquireRequest<'a> {
    /// The route's name.
    pub route: &'a str,
    /// The topics that the route takes.
    pub topics: &'a TopicSet,
    /// Who asks.
    pub worker: &'a WorkerId,
    /// The lanes it holds already.
    pub held: &'a [LaneId],
}

/// The answer to [`AcquireRequest`].
#[derive(Default)]
pub struct Acquired {
    /// Lanes that this worker now holds beside those it held.
    pub lanes: Vec<Arc<dyn Lane>>,
    /// Lanes that it should settle and release, since another relay needs its share.
    pub surrender: Vec<LaneId>,
}

/// What a migration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The schema version found; 0 when there was no schema.
    pub from: i32,
    /// The schema version left behind.
    pub to: i32,
    /// What it did beside that, as settings of the store say, for people.
    pub also: Option<&'static str>,
}

/// A database that holds the outbox.
#[async_trait]
pub trait Store: Send + Sync {
    /// The store's name, for logs and metric labels.
    fn name(&self) -> &'static str;

    /// Whether events of one key are handed out in commit order, failures parked with their
    /// followers behind them. The engine holds keys only for ordered stores.
    fn ordered(&self) -> bool;

    /// Brings the schema to this program's version.
    ///
    /// Guarantees: all or nothing; a second migrator waits for the first and then finds nothing to
    /// do. Cancellation: leaves the schema as it was. Errors: `SchemaNewer` when the schema was
    /// made by a newer program; `Unauthorized` with the missing permission.
    async fn migrate(&self) -> Result<Migrated>;

    /// Whether a relay can work here: reachable, schema of the right version, permissions, a
    /// primary and no standby. Changes nothing.
    async fn check(&self) -> Result<()>;

    /// Whether the store is as its settings say. Only for what a relay works without: it goes by what is
    /// there, and tells of this once. For a store that [`check`](Self::check) finds nothing wrong with.
    /// Changes nothing. Cancellation: safe. The default: it is.
    ///
    /// Errors, with what to do: `SchemaOlder` when it is for a migration to make the store so,
    /// `Configuration` when a migration would leave it as it is.
    async fn check_settings(&self) -> Result<()> {
        Ok(())
    }

    /// Takes free lanes of a route and says which held ones to give back. Called at start, every
    /// few seconds, and after a lane was lost.
    ///
    /// Guarantees: two workers never hold one lane at a time; a lane whose owner died becomes free
    /// at its lease's end; one that the asking worker has and does not name as held is its own again
    /// at once, as if released: it was given up, or the answer that gave it was lost; lanes spread over the workers that ask. Cancellation: a lane taken by a
    /// dropped call is free again after one lease.
    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired>;

    /// Returns when there may be new events, at the latest after `timeout`. May return early for
    /// no reason. Cancellation: safe. The default only sleeps: polling.
    async fn wait(&self, timeout: Duration) {
        tokio::time::sleep(timeout).await;
    }
}

/// A store with everything that an operator needs and what keeps it small.
pub trait OutboxStore: Store + DeadLetters + Inspect + Retention {}

impl<T: Store + DeadLetters + Inspect + Retention + ?Sized> OutboxStore for T {}

/// How much a claim may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimLimit {
    /// Events at the most; at least 1.
    pub events: usize,
    /// Bytes at the most, counted as [`StoredEvent::byte_len`] roughly does. The first event is
    /// returned whatever its size, so that no event can block its lane.
    pub bytes: usize,
}

/// Where the events of a batch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchSource {
    /// The lane's stream. Followers of blocked keys are among them and must be held.
    #[default]
    Stream,
    /// Parked events whose time has come: retries, and held events whose key is free to go on.
    /// Only ordered stores have them. The keys are those that [`Lane::blocked`] names, and the
    /// events are to be published in spite of that.
    Parked,
}

/// A row that can't be made into an event (headers of an unknown form, text that is no UTF-8).
/// The engine dead-letters it; a store must never hide or skip one (I2).
#[derive(Debug)]
pub struct Unreadable {
    /// Which row.
    pub position: Position,
    /// What orders it, as far as that can be read.
    pub key: Option<String>,
    /// Why, without the payload.
    pub error: Error,
}

/// Events taken under a lease.
#[derive(Debug)]
pub struct Batch {
    /// The fence; goes back with settle and renew.
    pub token: BatchToken,
    /// Where they come from.
    pub source: BatchSource,
    /// The events, by position in ordered stores, by due time and position in others.
    pub events: Vec<StoredEvent>,
    /// Rows beside them that can't be read.
    pub unreadable: Vec<Unreadable>,
    /// The database's clock at the claim, for ages.
    pub claimed_at: OffsetDateTime,
    /// Whether more may be waiting: the claim was cut by its limit.
    pub more: bool,
}

impl Batch {
    /// Whether nothing was due.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.unreadable.is_empty()
    }
}

/// Why an event is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadReason {
    /// The broker will never take it, or it can't be sent at all.
    Rejected,
    /// All attempts failed.
    AttemptsExhausted,
    /// It was in flight each time the process died.
    Crashed,
    /// Its topic was missing or forbidden for longer than the policy waits.
    TopicUnavailable,
    /// The row can't be read as an event.
    Unreadable,
    /// No route takes its topic.
    Unrouted,
}

impl DeadReason {
    /// Every reason, for lists.
    pub const ALL: [Self; 6] = [
        Self::Rejected,
        Self::AttemptsExhausted,
        Self::Crashed,
        Self::TopicUnavailable,
        Self::Unreadable,
        Self::Unrouted,
    ];

    /// The stable name, as written into stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Crashed => "crashed",
            Self::TopicUnavailable => "topic_unavailable",
            Self::Unreadable => "unreadable",
            Self::Unrouted => "unrouted",
        }
    }

    /// Reads the stable name back.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is remembered of a failure: one bounded line, no secret, no NUL, fit for any text column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureNote {
    /// What went wrong, when it came from an [`Error`].
    pub kind: Option<ErrorKind>,
    /// The reason as text, at most [`FailureNote::TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

impl FailureNote {
    /// Longer reasons are cut: failure notes are stored per event (I8).
    pub const TEXT_BYTES_MAX: usize = 1000;

    /// A note of this text.
    pub fn new(kind: Option<ErrorKind>, text: &str) -> Self {
        let mut text: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        text.truncate(text.floor_char_boundary(Self::TEXT_BYTES_MAX));
        Self { kind, text }
    }

    /// The note of an error: its one line.
    pub fn from_error(error: &Error) -> Self {
        Self::new(Some(error.kind()), &error.to_string())
    }
}

/// What is to be written about one event of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Acknowledged (I3).
    Done,
    /// Failed; to be claimed again after the delay on the database's clock. The attempt counts.
    Retry {
        /// How long from now.
        after: Duration,
        /// Why.
        note: FailureNote,
    },
    /// Its topic is at fault: like a retry, but the claim's attempt is given back.
    Defer {
        /// How long from now.
        after: Duration,
        /// Why.
        note: FailureNote,
    },
    /// Behind an earlier event of its key: parked until that one is gone. Ordered stores only.
    Hold,
    /// Not sent, or the destination is at fault: as if never claimed, the attempt is given back.
    /// In a batch from the stream of an ordered store everything behind the first one is returned
    /// too, since the cursor can't pass it; the engine sends such settlements only.
    Return,
    /// Not tried again without an operator.
    Dead {
        /// The class of the reason.
        reason: DeadReason,
        /// Why.
        note: FailureNote,
        /// Whether followers of its key wait for the operator. Without meaning in unordered stores.
        hold_key: bool,
    },
}

/// The verdict on one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Which event of the batch.
    pub position: Position,
    /// What to write.
    pub verdict: Verdict,
}

/// What a settle did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Events whose verdict is now written.
    pub applied: u64,
    /// Events that were no longer this batch's: taken over after the lease's end, settled by an
    /// earlier call whose answer was lost, or removed by an operator. Nothing of theirs changed.
    pub lost: u64,
    /// Keys of which nothing is parked any more: their events may flow from the stream again.
    pub unblocked: Vec<String>,
}

/// An ordered source of claims that one relay task works at a time: a shard in ordered stores, one
/// of several competing workers in a queue.
///
/// # Contract
/// - **Calls.** The engine never runs two `claim`s of a lane at a time, nor two `settle`s; a claim,
///   a settle and a renew may overlap. Batches are settled in the order of their claims.
/// - **Claim.** What a claim returns is in no other claim, of any worker, until it is settled,
///   returned, or its lease ends. Attempts are counted by the claim and stored before it returns
///   (I9); no transaction and no lock outlives the call (I11). Events of one claim are those that
///   were committed when it ran (I1).
/// - **Crashes.** Events whose lease ended unsettled are handed out again with `crashes` one
///   higher; such suspects come in ever smaller batches and at last alone, so that the culprit of a
///   crash can be told from its neighbours. Any settle of an event clears its count.
/// - **Settle.** All verdicts of a batch are written in one transaction, fenced by the token: who
///   lost the lease changes nothing (I6). A call whose answer was lost may be repeated; what the
///   first one wrote is then counted as `lost` (queue) or answered as before (ordered).
/// - **Dropping.** A batch that is never settled is handed out again after its lease. In an ordered
///   store dropping batch n drops n + 1 too: the engine then releases the lane. Settling an event
///   from the stream as `Return` voids every later claim of the lane in the same way: settling
///   such a one changes nothing and counts as `lost`, and the next claim starts behind the last
///   event that was not returned.
/// - **Ordered stores.** Settling an event as `Retry`, `Defer`, or `Dead` with `hold_key` parks it
///   and blocks its key; the engine settles followers read from the stream as `Hold`. The parked
///   head of a key is claimed when due, the held ones behind it when it is gone, by position; parked
///   events of one key are in one unsettled claim at a time. When
///   nothing of a key is parked any more, `settle` names it in [`Settled::unblocked`], or, when an
///   operator freed it, the next claim's settle does.
/// - **Errors.** `LeaseLost` when the lane itself belongs to another worker: the engine drops its
///   batches and stops the lane. Anything else is tried again by the engine.
#[async_trait]
pub trait Lane: Send + Sync {
    /// Which lane.
    fn id(&self) -> &LaneId;

    /// How long a claim stays this worker's without a renewal, from the call on.
    fn lease(&self) -> Duration;

    /// Keys with parked events, asked once after the lane was acquired. Unordered stores have none.
    async fn blocked(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Takes the next events that are due. Never waits for events: an empty batch is an answer.
    ///
    /// Cancellation: events may stay leased until the lease's end; the engine never cancels one.
    async fn claim(&self, limit: ClaimLimit) -> Result<Batch>;

    /// Writes the verdicts on a batch, one for each of its events, unreadable ones included.
    ///
    /// Cancellation: all or nothing was written; ask again to know.
    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled>;

    /// Prolongs the leases of these batches, and of the lane where it has one, by the full lease
    /// from now; returns the batches that are lost. Cancellation: safe.
    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>>;

    /// Gives everything back at once: claims that are not settled (their attempts too) and the lane
    /// itself, so that another worker can go on without waiting for the lease's end.
    async fn release(&self) -> Result<()>;
}

/// Both traits can be used as `dyn`.
const _: Option<(&dyn OutboxStore, &dyn Lane)> = None;
