//! The store's one clock: tokio's, so that a paused test is exact and repeatable, and steps that a
//! test makes, as those of a server whose clock is set.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use time::{OffsetDateTime, macros::datetime};
use tokio::time::Instant;

/// What the wall shows when the store is made. Fixed, so that two runs of one seed are equal.
const WALL_START: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

/// Where the clock stands when the store is made, so that it can be set back.
const ZERO: Duration = Duration::from_secs(24 * 3600);

/// A clock that may step.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    /// What it shows at the start, with all steps so far.
    zero: Mutex<Duration>,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self {
            start: Instant::now(),
            zero: Mutex::new(ZERO),
        }
    }

    pub(super) fn now(&self) -> Duration {
        let zero = *self.zero.lock().unwrap_or_else(PoisonError::into_inner);
        zero + self.start.elapsed()
    }

    pub(super) fn step(&self, forward: bool, by: Duration) {
        let mut zero = self.zero.lock().unwrap_or_else(PoisonError::into_inner);
        *zero = if forward {
            zero.saturating_add(by)
        } else {
            zero.saturating_sub(by)
        };
    }
}

/// The wall's time at a moment of the store's clock.
pub(super) fn wall(moment: Duration) -> OffsetDateTime {
    let since = time::Duration::try_from(moment).unwrap_or(time::Duration::MAX);
    WALL_START.saturating_add(since - time::Duration::DAY)
}
