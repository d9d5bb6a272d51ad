//! How large the next claim is and how long to wait before it: throughput first when behind,
//! latency first when idle. Pure.

use std::time::Duration;

use super::config::RelayConfig;

/// Claims start here: small enough for a short first wait, large enough to grow fast.
const BATCH_EVENTS_START: usize = 64;

#[derive(Debug)]
pub(super) struct Pace {
    events: usize,
    events_max: usize,
    wait: Duration,
    wait_min: Duration,
    wait_max: Duration,
    behind: bool,
}

impl Pace {
    pub(super) fn new(config: &RelayConfig) -> Self {
        Self {
            events: BATCH_EVENTS_START.min(config.batch_events_max),
            events_max: config.batch_events_max,
            wait: config.poll_min,
            wait_min: config.poll_min,
            wait_max: config.poll_max,
            behind: true,
        }
    }

    /// What the last claim brought, and whether its limit cut it.
    pub(super) fn claimed(&mut self, events: usize, more: bool) {
        self.behind = more;
        if more {
            self.events = (self.events * 2).min(self.events_max);
        } else if events < self.events / 4 {
            self.events = (self.events / 2).max(BATCH_EVENTS_START.min(self.events_max));
        }
        self.wait = if events > 0 {
            self.wait_min
        } else {
            (self.wait * 3 / 2).clamp(self.wait_min, self.wait_max)
        };
    }

    /// Events for the next claim.
    pub(super) fn batch_events(&self) -> usize {
        self.events
    }

    /// Whether more is known to be waiting, so that the next claim is worth making at once.
    pub(super) fn is_behind(&self) -> bool {
        self.behind
    }

    /// How long to wait before the next claim.
    pub(super) fn wait(&self) -> Duration {
        if self.behind {
            Duration::ZERO
        } else {
            self.wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_while_behind_and_calms_down_when_idle() {
        let mut pace = Pace::new(&RelayConfig::default());
        for _ in 0..5 {
            pace.claimed(pace.batch_events(), true);
        }
        assert_eq!((pace.batch_events(), pace.wait()), (500, Duration::ZERO));
        pace.claimed(3, false);
        assert_eq!(pace.wait(), Duration::from_millis(2));
        for _ in 0..20 {
            pace.claimed(0, false);
        }
        assert_eq!(
            (pace.batch_events(), pace.wait()),
            (64, Duration::from_millis(20))
        );
        pace.claimed(1, false);
        assert_eq!(pace.wait(), Duration::from_millis(2));
    }
}
