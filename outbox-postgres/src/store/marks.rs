//! Where a lane's scans begin.
//!
//! Rows that were claimed leave dead entries at the front of the indexes until a vacuum takes them
//! away. A scan from the very front passes them all: after 800,000 events 20 ms for each claim. So
//! most scans begin where the last one got, and one in a while begins at the front, for rows that
//! became visible behind the mark: late commits, rows that another lane gave back.

use std::time::{Duration, Instant};

/// How often a scan begins at the front.
const WHOLE_INTERVAL: Duration = Duration::from_millis(250);
/// How often expired leases are looked for: not at every claim, which would double idle polls.
const TAKEOVER_INTERVAL: Duration = Duration::from_millis(250);
/// How far behind the mark scans begin: most transactions are shorter, so that their rows are found
/// by the next claim.
const MARGIN: Duration = Duration::from_secs(1);

/// What a lane knows of the front of the queue. All times are passed in.
#[derive(Debug)]
pub(crate) struct Marks {
    lease: Duration,
    /// The last due time claimed, in the database's microseconds.
    claimed_due_us: Option<i64>,
    whole_claim_at: Instant,
    /// The last claim found nothing.
    idle: bool,
    takeover_at: Instant,
    /// When no expired lease was left.
    nothing_expired_at: Option<Instant>,
    whole_takeover_at: Instant,
}

/// Where a scan begins; `None` is the front.
pub(crate) type Begin = Option<i64>;

impl Marks {
    pub(crate) fn new(now: Instant, lease: Duration) -> Self {
        Self {
            lease,
            claimed_due_us: None,
            whole_claim_at: now,
            idle: false,
            takeover_at: now,
            nothing_expired_at: None,
            whole_takeover_at: now,
        }
    }

    /// The due time from which the next claim reads.
    pub(crate) fn claim(&self, now: Instant) -> Begin {
        if now >= self.whole_claim_at {
            return None;
        }
        self.claimed_due_us?.checked_sub(micros(MARGIN))
    }

    /// Whether an empty answer must be verified from the front: who claims until nothing comes must
    /// not stop before the end.
    pub(crate) fn verify(&self, begin: Begin) -> bool {
        begin.is_some() && !self.idle
    }

    /// A claim ended, with the last due time of its rows.
    pub(crate) fn claimed(&mut self, now: Instant, begin: Begin, last_due_us: Option<i64>) {
        if begin.is_none() {
            self.whole_claim_at = now + WHOLE_INTERVAL;
        }
        self.idle = last_due_us.is_none();
        if last_due_us.is_some() {
            self.claimed_due_us = last_due_us;
        }
    }

    /// Rows became due behind the mark: the next claim begins at the front.
    pub(crate) fn given_back(&mut self) {
        self.claimed_due_us = None;
    }

    /// Whether to look for expired leases now, and how long before now the look begins.
    pub(crate) fn takeover(&mut self, now: Instant) -> Option<Begin> {
        if now < self.takeover_at {
            return None;
        }
        // A lease is shorter than the interval only in tests.
        self.takeover_at = now + TAKEOVER_INTERVAL.min(self.lease / 4);
        let since = self
            .nothing_expired_at
            .filter(|_| now < self.whole_takeover_at);
        Some(since.map(|at| micros(now.saturating_duration_since(at) + MARGIN)))
    }

    /// A look for expired leases, begun at `started`, found some or none.
    pub(crate) fn took_over(&mut self, started: Instant, begin: Begin, found: bool) {
        if found {
            // A crash leaves whole batches: there may be more of them at once.
            self.takeover_at = started;
            self.nothing_expired_at = None;
            return;
        }
        if begin.is_none() {
            self.whole_takeover_at = started + self.lease;
        }
        self.nothing_expired_at = Some(started);
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn claims_begin_at_the_front_now_and_then() {
        let now = Instant::now();
        let mut marks = Marks::new(now, Duration::from_secs(30));
        assert_eq!(marks.claim(now), None);
        marks.claimed(now, None, Some(5_000_000));
        assert_eq!(marks.claim(now + MS), Some(4_000_000));
        assert_eq!(marks.claim(now + 250 * MS), None);
        marks.given_back();
        assert_eq!(marks.claim(now + MS), None);
        marks.claimed(now, None, Some(i64::MIN));
        assert_eq!(
            marks.claim(now + MS),
            None,
            "-infinity has nothing before it"
        );
    }

    #[test]
    fn the_first_empty_claim_is_verified() {
        let now = Instant::now();
        let mut marks = Marks::new(now, Duration::from_secs(30));
        assert!(!marks.verify(None));
        marks.claimed(now, None, Some(0));
        assert!(marks.verify(Some(0)));
        marks.claimed(now, None, None);
        assert!(!marks.verify(Some(0)), "idle polls are not doubled");
    }

    #[test]
    fn takeovers_look_at_what_ended_since_the_last_look() {
        let now = Instant::now();
        let mut marks = Marks::new(now, Duration::from_secs(30));
        assert_eq!(marks.takeover(now), Some(None));
        marks.took_over(now, None, true);
        assert_eq!(
            marks.takeover(now),
            Some(None),
            "again at once, and the whole"
        );
        marks.took_over(now, None, false);
        assert_eq!(marks.takeover(now + 249 * MS), None);
        assert_eq!(marks.takeover(now + 250 * MS), Some(Some(1_250_000)));
        marks.took_over(now + 250 * MS, Some(1_250_000), false);
        assert_eq!(
            marks.takeover(now + 30_000 * MS),
            Some(None),
            "the whole once a lease"
        );
    }
}
