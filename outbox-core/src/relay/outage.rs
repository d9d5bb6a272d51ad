//! A run of failures of one thing, told in bounded lines (I8): its beginning, how it goes on, and
//! at its end how often it failed and for how long.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use super::quiet::{Quiet, QuietByCause};
use crate::error::Error;

/// Counts an outage and bounds what is said of it.
#[derive(Debug)]
pub(super) struct Outage {
    /// So that a call that succeeds, as nearly all do, takes no lock.
    failing: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    since: Option<Instant>,
    failures: u64,
    lines: QuietByCause,
    /// A bound of its own: the last failure must not hide that it is over.
    ends: Quiet,
}

/// What an outage was.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) failures: u64,
    /// Since its first failure.
    pub(super) down_ms: u64,
    /// How many ends were not told since the last one that was; none when this one is not either.
    pub(super) line: Option<u64>,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            failing: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                since: None,
                failures: 0,
                lines: QuietByCause::default(),
                ends: Quiet::for_loop(),
            }),
        }
    }
}

impl Outage {
    /// Counts a failure. Says whether to write a line about it, and how many were left out before.
    pub(super) fn failed(&self, error: &Error) -> Option<u64> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.failing.store(true, Ordering::Relaxed);
        inner.since.get_or_insert_with(Instant::now);
        inner.failures += 1;
        inner.lines.line(error)
    }

    /// A call succeeded. Tells of the outage that it ends, if there was one.
    pub(super) fn ended(&self) -> Option<Ended> {
        if !self.failing.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.failing.store(false, Ordering::Relaxed);
        let since = inner.since.take()?;
        Some(Ended {
            failures: std::mem::take(&mut inner.failures),
            down_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            line: inner.ends.line(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "claim", "no")
    }

    #[tokio::test(start_paused = true)]
    async fn i8_an_outage_is_folded_and_counted() {
        let outage = Outage::default();
        assert_eq!(outage.ended(), None, "nothing has failed");
        let lines = (0..100).filter_map(|_| outage.failed(&error(ErrorKind::Unavailable)));
        assert_eq!(lines.count(), 2);
        assert_eq!(
            outage.failed(&error(ErrorKind::Timeout)),
            Some(0),
            "another kind"
        );
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(outage.failed(&error(ErrorKind::Unavailable)), Some(98));
        let ended = Ended {
            failures: 102,
            down_ms: 90_000,
            line: Some(0),
        };
        assert_eq!(outage.ended(), Some(ended));
        assert_eq!(outage.ended(), None, "told once");
        outage.failed(&error(ErrorKind::Unavailable));
        let again = outage.ended().unwrap();
        assert_eq!((again.failures, again.down_ms), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn i8_ends_of_a_flapping_thing_are_bounded_too() {
        let outage = Outage::default();
        let told = (0..50).filter_map(|_| {
            outage.failed(&error(ErrorKind::Unavailable));
            outage.ended().unwrap().line
        });
        assert_eq!(told.count(), 2);
    }
}
