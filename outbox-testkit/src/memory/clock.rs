//! The store's one clock: tokio's, so that a paused test is exact and repeatable.

use std::time::Duration;

use time::{OffsetDateTime, macros::datetime};
use tokio::time::Instant;

/// What the wall shows when the store is made. Fixed, so that two runs of one seed are equal.
const WALL_START: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

/// Time since the store was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// The wall's time at a moment of the store's clock.
pub(super) fn wall(moment: Duration) -> OffsetDateTime {
    WALL_START.saturating_add(time::Duration::try_from(moment).unwrap_or(time::Duration::MAX))
}
