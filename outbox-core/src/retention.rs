//! Forgetting what is delivered: how a store stays small.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;

/// What one step of cleaning may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanRequest {
    /// Delivered events go when they have been delivered for this long, on the database's clock;
    /// zero: as soon as possible.
    pub retention: Duration,
    /// Dedup keys go when they have been known for this long: later repeats are written as new.
    pub dedup_retention: Duration,
    /// Rows of each sort that the step looks at, at the most; at least 1.
    pub rows_max: u32,
}

impl CleanRequest {
    /// How long delivered events are kept where nothing else is said: a day, for audit.
    pub const RETENTION: Duration = Duration::from_secs(24 * 3600);
    /// How long dedup keys are kept where nothing else is said: 30 days, longer than commands and
    /// messages are repeated.
    pub const DEDUP_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
    /// Rows of a step where nothing else is said. At the 99th percentile inserts took 1.7 times as long
    /// beside steps of 500 rows, 1.1 times beside those of 100, which remove some 19,000 rows a second
    /// (`cargo xtask bench clean`, a quiet machine of two cores).
    pub const ROWS_MAX: u32 = 100;
}

impl Default for CleanRequest {
    fn default() -> Self {
        Self {
            retention: Self::RETENTION,
            dedup_retention: Self::DEDUP_RETENTION,
            rows_max: Self::ROWS_MAX,
        }
    }
}

/// What one step of cleaning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Delivered events that went.
    pub events: u64,
    /// Dedup keys that went.
    pub dedup_keys: u64,
    /// Partitions that went, with all events in them; those are not among `events`.
    pub partitions: u64,
    /// The step was cut by its bound: another may find more. Also where this one removed nothing,
    /// since it looked at rows that must stay.
    pub more: bool,
    /// Another cleaner was at work: nothing was done, and nothing is known of what is left.
    pub busy: bool,
    /// What keeps the store from staying in shape and what to do about it, for people. Events flow
    /// all the same.
    pub notice: Option<&'static str>,
}

impl Cleaned {
    /// Whether anything went.
    pub fn is_empty(&self) -> bool {
        self.events == 0 && self.dedup_keys == 0 && self.partitions == 0
    }

    /// What several steps removed; the rest is the last one's.
    #[must_use]
    pub fn and(self, next: Self) -> Self {
        Self {
            events: self.events.saturating_add(next.events),
            dedup_keys: self.dedup_keys.saturating_add(next.dedup_keys),
            partitions: self.partitions.saturating_add(next.partitions),
            ..next
        }
    }
}

/// Removing what need not be remembered. Object-safe.
#[async_trait]
pub trait Retention: Send + Sync {
    /// One step: removes delivered events and dedup keys that are older than asked for, and does
    /// what else keeps the store in shape (partitions). Repeat while [`Cleaned::more`] says so.
    ///
    /// Guarantees: never touches an event that is pending, scheduled, in flight, held or dead, nor
    /// the dedup key of one that is younger than asked for. Bounded in rows. Commits by itself. One
    /// cleaner at a time over all processes: the others are told [`Cleaned::busy`] and do nothing.
    /// Holds no lock that a writer or a claim waits for longer than 50 ms, and never deadlocks with
    /// them. Cancellation: the step is done or not; the next one goes on.
    ///
    /// Errors: `Unauthorized` with the missing permission.
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned>;

    /// What all steps of [`clean`](Self::clean) together would remove at this moment; `more` and
    /// `busy` are not set. For people: it may look at every row, in statements that are bounded each.
    /// Changes nothing. Cancellation: safe.
    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned>;
}

/// The trait can be used as `dyn`.
const _: Option<&dyn Retention> = None;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_and_the_last_one_says_whether_to_go_on() {
        let step = Cleaned {
            events: 2,
            dedup_keys: 3,
            partitions: 1,
            more: true,
            busy: false,
            notice: Some("a"),
        };
        let last = Cleaned {
            busy: true,
            ..Cleaned::default()
        };
        let both = step.and(step).and(last);
        assert_eq!((both.events, both.dedup_keys, both.partitions), (4, 6, 2));
        assert_eq!((both.more, both.busy, both.notice), (false, true, None));
        assert!(last.is_empty() && !both.is_empty());
    }
}
