//! Where a lane's scans begin.
//!
//! Rows that were claimed leave dead entries at the front of the indexes until a vacuum takes them
//! away. A scan from the very front passes them all: after 800,000 events 20 ms for each claim. So
//! most scans begin where the last one got, and one in a while begins at the front, for rows that
//! became visible behind the mark: late commits, rows that another lane gave back.

use std::time::{Duration, Instant};

/// How often a scan begins at the front.
const WHOLE_INTERVAL: Duration = Duration::from_millis(250);
/// A scan from the front passes all due events of topics that other routes take: when one of these
/// is down, its whole backlog. The pause is at least this many times what the last one took, so
/// that a lane spends a small share of its time on them…
const WHOLE_PAUSE_FACTOR: u32 = 20;
/// … and at most this long.
const WHOLE_PAUSE_MAX: Duration = Duration::from_secs(15);
/// What a scan from the front may take to be made for certainty alone.
const WHOLE_CHEAP: Duration = Duration::from_millis(50);
/// How often expired leases are looked for: not at every claim, which would double idle polls.
const TAKEOVER_INTERVAL: Duration = Duration::from_millis(250);
/// How far behind the mark scans begin: most transactions are shorter, so that their rows are found
/// by the next claim.
const MARGIN: Duration = Duration::from_secs(1);

/// Where a scan begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At the front of the index.
    Front,
    /// At this due time, in the database's microseconds, and this row.
    At {
        /// When the first row is due.
        due_us: i64,
        /// Its id.
        id: i64,
    },
    /// This many microseconds before the statement, on the database's clock.
    Ago(i64),
}

/// What a claim brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Due time and id of the last row.
    pub(crate) last: (i64, i64),
    /// Its limit cut it: there is a backlog.
    pub(crate) more: bool,
}

/// What a lane knows of the front of the queue. All times are passed in.
#[derive(Debug)]
pub(crate) struct Marks {
    lease: Duration,
    claim: ClaimMark,
    whole_claim_at: Instant,
    /// What the last two scans from the front took. The lesser counts: one may have waited for a
    /// connection.
    whole_claim_took: [Duration; 2],
    takeover_at: Instant,
    /// When no expired lease was left.
    nothing_expired_at: Option<Instant>,
    whole_takeover_at: Instant,
}

#[derive(Debug)]
enum ClaimMark {
    Unknown,
    Taken(Taken),
    /// Nothing was due then.
    Idle(Instant),
}

impl Marks {
    pub(crate) fn new(now: Instant, lease: Duration) -> Self {
        Self {
            lease,
            claim: ClaimMark::Unknown,
            whole_claim_at: now,
            whole_claim_took: [Duration::ZERO; 2],
            takeover_at: now,
            nothing_expired_at: None,
            whole_takeover_at: now,
        }
    }

    /// Where the next claim begins.
    pub(crate) fn claim(&self, now: Instant) -> Begin {
        if now >= self.whole_claim_at {
            return Begin::Front;
        }
        match self.claim {
            ClaimMark::Unknown => Begin::Front,
            // In a backlog everything waits anyway, and its rows may all be due at one time.
            ClaimMark::Taken(Taken {
                last: (due_us, id),
                more: true,
            }) => Begin::At { due_us, id },
            ClaimMark::Taken(Taken {
                last: (due_us, _), ..
            }) => due_us
                .checked_sub(micros(MARGIN))
                .map_or(Begin::Front, |due_us| Begin::At {
                    due_us,
                    id: i64::MIN,
                }),
            ClaimMark::Idle(at) => ago(now, at),
        }
    }

    /// Whether an empty answer must be verified from the front: who claims until nothing comes must
    /// not stop before the end.
    pub(crate) fn verify(&self, begin: Begin) -> bool {
        begin != Begin::Front
            && !matches!(self.claim, ClaimMark::Idle(_))
            && self.whole_cost() <= WHOLE_CHEAP
    }

    /// A claim, begun at `started`, ended; its last scan took so long.
    pub(crate) fn claimed(
        &mut self,
        started: Instant,
        took: Duration,
        begin: Begin,
        taken: Option<Taken>,
    ) {
        if begin == Begin::Front {
            self.whole_claim_took = [self.whole_claim_took[1], took];
            let pause = self.whole_cost().saturating_mul(WHOLE_PAUSE_FACTOR);
            self.whole_claim_at = started + pause.clamp(WHOLE_INTERVAL, WHOLE_PAUSE_MAX);
        }
        self.claim = match taken {
            Some(taken) => ClaimMark::Taken(taken),
            None => ClaimMark::Idle(started),
        };
    }

    fn whole_cost(&self) -> Duration {
        self.whole_claim_took[0].min(self.whole_claim_took[1])
    }

    /// Rows became due behind the mark: the next claim begins at the front.
    pub(crate) fn given_back(&mut self) {
        self.claim = ClaimMark::Unknown;
    }

    /// Whether to look for expired leases now, and where the look begins.
    pub(crate) fn takeover(&mut self, now: Instant) -> Option<Begin> {
        if now < self.takeover_at {
            return None;
        }
        // A lease is shorter than the interval only in tests.
        self.takeover_at = now + TAKEOVER_INTERVAL.min(self.lease / 4);
        let since = self
            .nothing_expired_at
            .filter(|_| now < self.whole_takeover_at);
        Some(since.map_or(Begin::Front, |at| ago(now, at)))
    }

    /// A look for expired leases, begun at `started`, found some or none.
    pub(crate) fn took_over(&mut self, started: Instant, begin: Begin, found: bool) {
        if found {
            // A crash leaves whole batches: there may be more of them at once.
            self.takeover_at = started;
            self.nothing_expired_at = None;
            return;
        }
        if begin == Begin::Front {
            self.whole_takeover_at = started + self.lease;
        }
        self.nothing_expired_at = Some(started);
    }
}

/// From a while before that instant on.
fn ago(now: Instant, at: Instant) -> Begin {
    Begin::Ago(micros(now.saturating_duration_since(at) + MARGIN))
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    const LEASE: Duration = Duration::from_secs(30);

    fn taken(due_us: i64, more: bool) -> Taken {
        Taken {
            last: (due_us, 7),
            more,
        }
    }

    #[test]
    fn claims_begin_at_the_front_now_and_then() {
        let now = Instant::now();
        let mut marks = Marks::new(now, LEASE);
        assert_eq!(marks.claim(now), Begin::Front);
        let mark = |due_us, id| Begin::At { due_us, id };
        marks.claimed(now, MS, Begin::Front, Some(taken(5_000_000, false)));
        assert_eq!(marks.claim(now + MS), mark(4_000_000, i64::MIN));
        marks.claimed(
            now + MS,
            MS,
            mark(4_000_000, i64::MIN),
            Some(taken(6_000_000, true)),
        );
        assert_eq!(marks.claim(now + 249 * MS), mark(6_000_000, 7));
        assert_eq!(marks.claim(now + 250 * MS), Begin::Front);
        marks.given_back();
        assert_eq!(marks.claim(now + MS), Begin::Front);
        marks.claimed(now, MS, Begin::Front, Some(taken(i64::MIN, false)));
        assert_eq!(
            marks.claim(now + MS),
            Begin::Front,
            "nothing is before -infinity"
        );
    }

    /// Case: another route's broker is down and its backlog stands at the front.
    #[test]
    fn i7_costly_looks_at_the_front_are_rare() {
        let now = Instant::now();
        let mut marks = Marks::new(now, LEASE);
        marks.claimed(now, 400 * MS, Begin::Front, None);
        assert_eq!(marks.claim(now + 250 * MS), Begin::Front, "once is chance");
        marks.claimed(now, 300 * MS, Begin::Front, None);
        let begin = marks.claim(now + 5_999 * MS);
        assert_eq!(begin, Begin::Ago(6_999_000));
        assert_eq!(marks.claim(now + 6_000 * MS), Begin::Front);
        marks.claimed(now + MS, MS, begin, Some(taken(5_000_000, false)));
        let begin = marks.claim(now + 2 * MS);
        assert!(!marks.verify(begin), "not for certainty alone");
        for _ in 0..2 {
            marks.claimed(now, Duration::from_secs(60), Begin::Front, None);
        }
        assert_eq!(
            marks.claim(now + WHOLE_PAUSE_MAX),
            Begin::Front,
            "never put off for ever"
        );
        marks.claimed(now, MS, Begin::Front, Some(taken(5_000_000, false)));
        assert_eq!(marks.claim(now + 250 * MS), Begin::Front);
        assert!(marks.verify(marks.claim(now + MS)));
    }

    #[test]
    fn the_first_empty_claim_is_verified() {
        let now = Instant::now();
        let mut marks = Marks::new(now, LEASE);
        assert!(!marks.verify(Begin::Front));
        marks.claimed(now, MS, Begin::Front, Some(taken(0, true)));
        assert!(marks.verify(marks.claim(now + MS)));
        marks.claimed(now, MS, Begin::Front, None);
        let begin = marks.claim(now + 3 * MS);
        assert_eq!(begin, Begin::Ago(1_003_000));
        assert!(!marks.verify(begin), "idle polls are not doubled");
    }

    #[test]
    fn takeovers_look_at_what_ended_since_the_last_look() {
        let now = Instant::now();
        let mut marks = Marks::new(now, LEASE);
        assert_eq!(marks.takeover(now), Some(Begin::Front));
        marks.took_over(now, Begin::Front, true);
        assert_eq!(marks.takeover(now), Some(Begin::Front), "again at once");
        marks.took_over(now, Begin::Front, false);
        assert_eq!(marks.takeover(now + 249 * MS), None);
        let begin = Begin::Ago(1_250_000);
        assert_eq!(marks.takeover(now + 250 * MS), Some(begin));
        marks.took_over(now + 250 * MS, begin, false);
        assert_eq!(
            marks.takeover(now + LEASE),
            Some(Begin::Front),
            "once a lease"
        );
    }
}
