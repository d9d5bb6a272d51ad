//! How often and how long a failing event is tried.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// What happens to the events behind a dead one of the same key, in stores that keep order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// They wait until an operator requeues or discards the dead one: order is kept.
    #[default]
    HoldKey,
    /// They go on without it: order within the key has a hole.
    Skip,
}

/// The policy for events that fail in message scope, and the patience with topics.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// The shortest delay, and the seed of the series. Default 1 s.
    pub base: Duration,
    /// What each further attempt multiplies the longest delay by. Default 2.
    pub factor: u32,
    /// No delay is longer. Default 5 min.
    pub cap: Duration,
    /// Attempts until an event is dead. Default 10.
    pub attempts_max: u32,
    /// Deaths of the process with the event in flight until it is dead (I9). Default 5.
    pub crashes_max: u32,
    /// How long events wait for a topic that is missing or forbidden. Default 24 h.
    pub topic_patience: Duration,
    /// What a dead event does to its key. Default: hold it.
    pub on_dead: OnDead,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            factor: 2,
            cap: Duration::from_secs(300),
            attempts_max: 10,
            crashes_max: 5,
            topic_patience: Duration::from_secs(24 * 3600),
            on_dead: OnDead::HoldKey,
        }
    }
}

impl RetryPolicy {
    /// Checks that the numbers make sense together.
    ///
    /// # Errors
    /// `Configuration`, naming the field and the remedy.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what| {
            Err(Error::new(
                ErrorKind::Configuration,
                "read retry policy",
                what,
            ))
        };
        if self.base < Duration::from_millis(1) {
            return wrong("base is below 1 ms; a failing event would be tried without a pause");
        }
        if self.cap < self.base {
            return wrong("cap is below base; raise it");
        }
        if self.factor == 0 {
            return wrong("factor is 0; use 1 for equal delays, 2 for doubling");
        }
        if self.attempts_max == 0 {
            return wrong("attempts_max is 0; an event needs at least one attempt");
        }
        if self.crashes_max == 0 {
            return wrong("crashes_max is 0; use at least 1");
        }
        Ok(())
    }

    /// The delay after the given attempt (1 = the first), full jitter above the base:
    /// `base + (min(cap, base × factor^attempt) − base) × unit`, `unit` in 0..1.
    /// Saturates for every attempt number: always within `[base, cap]`.
    /// Source: "Exponential Backoff And Jitter" (AWS Architecture Blog), with the base as floor so
    /// that no retry is immediate.
    pub fn backoff(&self, attempt: u32, unit: f64) -> Duration {
        backoff(self.base, self.factor, self.cap, attempt, unit)
    }
}

pub(crate) fn backoff(
    base: Duration,
    factor: u32,
    cap: Duration,
    attempt: u32,
    unit: f64,
) -> Duration {
    let (base_ns, cap_ns) = (base.as_nanos(), cap.max(base).as_nanos());
    let ceiling = u128::from(factor)
        .checked_pow(attempt)
        .and_then(|growth| growth.checked_mul(base_ns))
        .unwrap_or(cap_ns)
        .clamp(base_ns, cap_ns);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a jitter needs no exact nanosecond, and unit is clamped to 0..1"
    )]
    let spread = ((ceiling - base_ns) as f64 * unit.clamp(0.0, 1.0)) as u128;
    Duration::from_nanos_u128((base_ns + spread).min(ceiling))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_spreads() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.backoff(1, 0.0), Duration::from_secs(1));
        assert_eq!(policy.backoff(1, 1.0), Duration::from_secs(2));
        assert_eq!(policy.backoff(3, 1.0), Duration::from_secs(8));
        assert_eq!(policy.backoff(30, 1.0), Duration::from_secs(300));
        for attempt in [31, 32, 62, 63, 64, 65, 1000, i32::MAX as u32, u32::MAX] {
            assert_eq!(policy.backoff(attempt, 1.0), Duration::from_secs(300));
        }
    }

    #[test]
    fn parts_of_a_microsecond_are_no_shorter_delay() {
        let base = Duration::from_nanos(1_000_999);
        for cap in [base, base * 3] {
            let policy = RetryPolicy {
                base,
                cap,
                ..RetryPolicy::default()
            };
            assert_eq!(policy.backoff(1, 0.0), base);
            assert_eq!(policy.backoff(9, 1.0), cap);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let wrong = [
            RetryPolicy {
                base: Duration::ZERO,
                ..RetryPolicy::default()
            },
            RetryPolicy {
                cap: Duration::from_millis(1),
                ..RetryPolicy::default()
            },
            RetryPolicy {
                factor: 0,
                ..RetryPolicy::default()
            },
            RetryPolicy {
                attempts_max: 0,
                ..RetryPolicy::default()
            },
            RetryPolicy {
                crashes_max: 0,
                ..RetryPolicy::default()
            },
        ];
        for policy in wrong {
            assert_eq!(
                policy.validate().unwrap_err().kind(),
                ErrorKind::Configuration
            );
        }
        RetryPolicy::default().validate().unwrap();
    }
}
