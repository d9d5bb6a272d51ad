//! What a store tells about itself, at bounded cost.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    error::Result,
    store::{FailureNote, LaneId},
};

/// A count that stops at a bound, so that asking never costs more than the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoundedCount {
    /// What was counted.
    pub value: u64,
    /// There may be more.
    pub at_least: bool,
}

impl std::fmt::Display for BoundedCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.value, if self.at_least { "+" } else { "" })
    }
}

/// Who works a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneInfo {
    /// Which lane.
    pub lane: LaneId,
    /// The worker that holds it.
    pub owner: Option<String>,
    /// Events it has in flight, where the store knows.
    pub in_flight: BoundedCount,
    /// How long the lease still runs; zero when it ended.
    pub lease_left: Duration,
}

/// The state of an outbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    /// Sendable now.
    pub pending: BoundedCount,
    /// Due later: scheduled by the producer, or waiting for a retry.
    pub scheduled: BoundedCount,
    /// Claimed by a relay.
    pub in_flight: BoundedCount,
    /// Held behind an earlier event of their key (ordered stores).
    pub held: BoundedCount,
    /// Dead letters.
    pub dead: BoundedCount,
    /// How long the oldest sendable event has been due; zero when there is none.
    pub oldest_pending: Duration,
    /// Keys on hold.
    pub blocked_keys: BoundedCount,
    /// Lanes, or the workers that hold leases.
    pub lanes: Vec<LaneInfo>,
}

/// A topic of which events failed and wait for their next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingTopic {
    /// Which topic.
    pub topic: String,
    /// Events that failed and are not due again yet; in ordered stores without those held behind them.
    pub waiting: BoundedCount,
    /// How long until the first of them is due.
    pub retry_in: Duration,
    /// Why the one that failed last did.
    pub last_failure: FailureNote,
}

/// What waits because it failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failing {
    /// By topic, those of the most waiting events first, then by name.
    pub topics: Vec<FailingTopic>,
    /// A bound was reached: more topics may fail.
    pub more: bool,
}

/// Reading a store's state. Object-safe.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The state now. Counts stop at `count_max` rows each.
    async fn inspect(&self, count_max: u32) -> Result<Inspection>;

    /// Why events wait that [`inspect`](Self::inspect) counts as scheduled: those that failed or were
    /// put off with their topic, by topic. Changes nothing.
    ///
    /// Looks at `rows_max` events that are due later at the most, those due first, and tells of
    /// `topics_max` topics at the most. Not among them: events that are due again, and those of a
    /// paused destination, which were given back and are pending.
    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing>;
}

/// The trait can be used as `dyn`.
const _: Option<&dyn Inspect> = None;
