//! Circuit breakers: pure; the caller passes time and random numbers.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind, Result},
    limits::DURATION_MAX,
    retry::backoff,
};

/// How long a failed topic or destination is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// The shortest pause. Default 200 ms.
    pub base: Duration,
    /// The longest pause, and so the longest time that a recovered server stays unnoticed.
    /// Default 15 s.
    pub cap: Duration,
    /// How long a probe may take before another one is sent. Default 60 s: above the publish
    /// deadline of 30 s.
    pub probe_timeout: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(200),
            cap: Duration::from_secs(15),
            probe_timeout: Duration::from_secs(60),
        }
    }
}

impl BreakerPolicy {
    /// Checks that no pause is so short that it spins, or so long that it never ends.
    ///
    /// # Errors
    /// `Configuration`, naming the field and the remedy.
    pub fn validate(&self) -> Result<()> {
        let wrong = |field: &'static str, what: &'static str| {
            Err(
                Error::new(ErrorKind::Configuration, "read breaker settings", what)
                    .context("field", field),
            )
        };
        for (field, value) in [("base", self.base), ("probe_timeout", self.probe_timeout)] {
            if value < Duration::from_millis(1) {
                return wrong(field, "it is below 1 ms and would spin");
            }
        }
        if self.cap < self.base {
            return wrong("cap", "it is below base; raise it");
        }
        for (field, value) in [("cap", self.cap), ("probe_timeout", self.probe_timeout)] {
            if value > DURATION_MAX {
                return wrong(field, "it is above 365 days; lower it");
            }
        }
        Ok(())
    }
}

/// Whether work may go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    Closed,
    /// One event may, to see whether the fault is gone. Whoever gets this answer owns the probe
    /// and must report success or failure, or give it back.
    Probe,
    /// Not before this instant.
    Open(Instant),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen { probe_ends: Instant },
}

/// A circuit breaker: closed while all is well, open after a failure, half-open for one probe.
#[derive(Debug, Clone)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
    failures: u32,
    pause: Duration,
}

impl Breaker {
    /// A closed one.
    pub fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: State::Closed,
            failures: 0,
            pause: Duration::ZERO,
        }
    }

    /// Asks whether work may go through now; the one asker after the pause gets the probe.
    pub fn gate(&mut self, now: Instant) -> Gate {
        match self.state {
            State::Closed => Gate::Closed,
            State::Open { until } | State::HalfOpen { probe_ends: until } if now < until => {
                Gate::Open(until)
            }
            State::Open { .. } | State::HalfOpen { .. } => {
                self.state = State::HalfOpen {
                    probe_ends: now + self.policy.probe_timeout,
                };
                Gate::Probe
            }
        }
    }

    /// Work succeeded. What ends a pause is one small event, and a server that is nearly full takes
    /// that and refuses the batch behind it: only a success after the pause is over lets the next
    /// pause be a short one again. Returns whether work was held back before.
    pub fn succeeded(&mut self) -> bool {
        let was_open = self.reachable();
        if !was_open {
            self.failures = 0;
        }
        was_open
    }

    /// It can be reached, but nothing was sent: work may go through, and should that fail, the
    /// pauses go on where they were. Returns whether it was held back before.
    pub fn reachable(&mut self) -> bool {
        let was_open = self.is_open();
        self.state = State::Closed;
        was_open
    }

    /// It failed; returns how long to leave it alone. A failure of work that was under way when the
    /// breaker opened does not lengthen the pause. `unit` in 0..1 spreads relays that fail together.
    pub fn failed(&mut self, now: Instant, retry_after: Option<Duration>, unit: f64) -> Duration {
        if let State::Open { until } = self.state
            && now < until
        {
            return until - now;
        }
        self.failures = self.failures.saturating_add(1);
        let pause = backoff(self.policy.base, 2, self.policy.cap, self.failures, unit)
            .max(retry_after.unwrap_or_default().min(self.policy.cap));
        self.state = State::Open { until: now + pause };
        self.pause = pause;
        pause
    }

    /// The pause of the last failure: how long work that can't be told of the probe's answer should
    /// stay away, since the probe's own time limit is far longer than a probe takes.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The probe found nothing to send: the next asker gets it.
    pub fn probe_returned(&mut self, now: Instant) {
        if let State::HalfOpen { .. } = self.state {
            self.state = State::Open { until: now };
        }
    }

    /// Whether work is held back.
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn opens_probes_and_closes() {
        let mut breaker = Breaker::new(BreakerPolicy::default());
        let start = Instant::now();
        assert_eq!(breaker.gate(start), Gate::Closed);
        let pause = breaker.failed(start, None, 0.0);
        assert_eq!(pause, Duration::from_millis(200));
        assert_eq!(
            breaker.failed(start, None, 0.0),
            pause,
            "work under way does not lengthen it"
        );
        assert_eq!(breaker.gate(start), Gate::Open(start + pause));
        assert_eq!(breaker.gate(start + pause), Gate::Probe);
        assert!(
            matches!(breaker.gate(start + pause), Gate::Open(_)),
            "one probe at a time"
        );
        breaker.probe_returned(start + pause);
        assert_eq!(breaker.gate(start + pause), Gate::Probe);
        let longer = breaker.failed(start + pause, None, 1.0);
        assert!(
            longer > pause && longer <= Duration::from_secs(15),
            "{longer:?}"
        );
        assert_eq!(breaker.gate(start + pause + longer), Gate::Probe);
        assert!(breaker.succeeded());
        assert_eq!(breaker.gate(start), Gate::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_only_reachable_does_not_start_the_pauses_anew() {
        let mut breaker = Breaker::new(BreakerPolicy::default());
        let now = Instant::now();
        for _ in 0..10 {
            breaker.failed(now, None, 1.0);
            assert!(breaker.reachable());
            assert_eq!(breaker.gate(now), Gate::Closed);
        }
        assert_eq!(breaker.failed(now, None, 1.0), Duration::from_secs(15));
    }

    /// A full server takes the probe and refuses what comes behind it.
    #[tokio::test(start_paused = true)]
    async fn only_what_succeeds_after_the_probe_starts_the_pauses_anew() {
        let mut breaker = Breaker::new(BreakerPolicy::default());
        let now = Instant::now();
        for _ in 0..10 {
            breaker.failed(now, None, 1.0);
            assert!(breaker.succeeded());
            assert_eq!(breaker.gate(now), Gate::Closed);
        }
        assert_eq!(breaker.failed(now, None, 1.0), Duration::from_secs(15));
        assert!(breaker.succeeded());
        assert!(!breaker.succeeded());
        assert!(breaker.failed(now, None, 1.0) < Duration::from_secs(1));
    }

    #[test]
    fn pauses_that_would_spin_are_refused() {
        let with = |change: fn(&mut BreakerPolicy)| {
            let mut policy = BreakerPolicy::default();
            change(&mut policy);
            policy.validate().unwrap_err().to_string()
        };
        for (field, error) in [
            ("base", with(|p| p.base = Duration::ZERO)),
            ("cap", with(|p| p.cap = Duration::from_millis(1))),
            ("cap", with(|p| p.cap = Duration::MAX)),
            ("probe_timeout", with(|p| p.probe_timeout = Duration::ZERO)),
            ("probe_timeout", with(|p| p.probe_timeout = Duration::MAX)),
        ] {
            assert!(error.contains(&format!("field={field}")), "{error}");
        }
        BreakerPolicy::default().validate().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_probe_is_replaced_and_the_servers_wish_is_bounded() {
        let mut breaker = Breaker::new(BreakerPolicy::default());
        let start = Instant::now();
        assert_eq!(
            breaker.failed(start, Some(Duration::from_secs(9999)), 0.0),
            Duration::from_secs(15)
        );
        let later = start + Duration::from_secs(15);
        assert_eq!(breaker.gate(later), Gate::Probe);
        assert_eq!(breaker.gate(later + Duration::from_secs(61)), Gate::Probe);
    }
}
