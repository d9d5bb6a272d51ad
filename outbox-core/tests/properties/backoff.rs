//! The delays of retries, for every policy and attempt that can be written.

use std::time::Duration;

use outbox_core::{
    Answer, Attempt, DeliveryState, ErrorKind, RetryPolicy, Scope, Step, Verdict, step,
};
use proptest::prelude::*;

use crate::given::{Answered, Word, durations, retry_policies};

/// Any numbers, also those that `validate` refuses; a base of zero has no series.
fn policies() -> impl Strategy<Value = RetryPolicy> {
    (durations(), durations(), prop_oneof![0u32..4, any::<u32>()]).prop_map(
        |(base, cap, factor)| RetryPolicy {
            base: base.max(Duration::from_nanos(1)),
            factor,
            cap,
            ..RetryPolicy::default()
        },
    )
}

/// Few attempts often, and all there are.
fn attempts() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..70, any::<u32>(), Just(u32::MAX)]
}

/// `min(cap, base × factor^attempt)` in nanoseconds, never below base, one step at a time.
fn ceiling(policy: &RetryPolicy, attempt: u32) -> u128 {
    let (base, cap) = (policy.base.as_nanos(), policy.cap.as_nanos());
    let mut longest = base;
    for _ in 0..attempt {
        if longest >= cap || policy.factor <= 1 {
            break;
        }
        longest = longest.saturating_mul(policy.factor.into());
    }
    longest.min(cap).max(base)
}

/// Whether they are the same but for what a float of this size can't tell.
fn near(found: Duration, expected_ns: u128) -> bool {
    let slack = 2 + expected_ns / (1 << 50);
    found.as_nanos().abs_diff(expected_ns) <= slack
}

proptest! {
    #[test]
    fn backoff_overflow_a_delay_is_never_below_the_base_nor_above_the_cap(policy in policies(), attempt in attempts(), unit: f64) {
        let delay = policy.backoff(attempt, unit);
        prop_assert!(policy.base <= delay && delay <= policy.cap.max(policy.base), "{delay:?}");
    }

    #[test]
    fn the_longest_delay_is_the_documented_one_and_grows_with_the_attempts(policy in policies(), attempt in attempts(), more in attempts()) {
        let longest = policy.backoff(attempt, 1.0);
        prop_assert!(near(longest, ceiling(&policy, attempt)), "{longest:?}");
        if policy.factor > 0 {
            prop_assert!(policy.backoff(attempt.saturating_add(more), 1.0) >= longest);
        }
    }

    #[test]
    fn the_jitter_covers_all_from_the_base_to_the_longest_evenly(policy in policies(), attempt in attempts(), unit in 0.0..1.0f64) {
        let (shortest, longest) = (policy.backoff(attempt, 0.0), policy.backoff(attempt, 1.0));
        prop_assert_eq!(shortest, policy.base);
        let room = longest.saturating_sub(shortest).as_nanos();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`near` allows for it")]
        let part = (room as f64 * unit) as u128;
        let delay = policy.backoff(attempt, unit);
        prop_assert!(near(delay, shortest.as_nanos() + part), "{delay:?} of {shortest:?} to {longest:?}");
        prop_assert!(policy.backoff(attempt, unit / 2.0) <= delay);
    }

    #[test]
    fn the_servers_wish_is_respected_up_to_the_cap(policy in retry_policies(), number in 1u32..5, unit in 0.0..1.0f64, wish in durations()) {
        let policy = RetryPolicy { attempts_max: 5, ..policy };
        let answered = Answered::Not(Word::Failed, ErrorKind::Refused, Scope::Message, Some(wish)).outcome();
        let attempt = Attempt { number, crashes: 0, failing_for: None };
        let answer = Answer { unit, topic_pause: Duration::ZERO };
        let (_, verdict) = step(DeliveryState::Publishing, attempt, &policy, Step::Answered(&answered, answer));
        let Some(Verdict::Retry { after, .. }) = verdict else {
            return Err(TestCaseError::fail(format!("{verdict:?}")));
        };
        prop_assert_eq!(after, policy.backoff(number, unit).max(wish.min(policy.cap)));
        prop_assert!(after <= policy.cap);
    }
}
