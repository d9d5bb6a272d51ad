//! What a store tells about itself, at bounded cost.

use std::time::Duration;

use async_trait::async_trait;

use crate::{error::Result, store::LaneId};

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

/// Reading a store's state. Object-safe.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The state now. Counts stop at `count_max` rows each.
    async fn inspect(&self, count_max: u32) -> Result<Inspection>;
}

/// The trait can be used as `dyn`.
const _: Option<&dyn Inspect> = None;
