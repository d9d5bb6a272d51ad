//! Circuit breakers under any history of answers and any clock that does not run backwards.

use std::time::Duration;

use outbox_core::{Breaker, BreakerPolicy, Gate, RetryPolicy};
use proptest::prelude::*;
use tokio::time::Instant;

use crate::given::{breaker_policies, durations};

#[derive(Debug, Clone)]
enum Act {
    /// Time passes: a part of the pause, of the probe's time limit, or just until their ends.
    Wait(Wait),
    Gate,
    Succeeded,
    Reachable,
    Failed(Option<Duration>, f64),
    ProbeReturned,
}

#[derive(Debug, Clone)]
enum Wait {
    PartOfCap(f64),
    PartOfProbe(f64),
    UntilOpen,
}

fn acts() -> impl Strategy<Value = Act> {
    let waits = prop_oneof![
        (0.0..1.1f64).prop_map(Wait::PartOfCap),
        (0.0..1.1f64).prop_map(Wait::PartOfProbe),
        Just(Wait::UntilOpen),
    ];
    prop_oneof![
        3 => waits.prop_map(Act::Wait),
        4 => Just(Act::Gate),
        1 => Just(Act::Succeeded),
        1 => Just(Act::Reachable),
        3 => (proptest::option::weighted(0.2, durations()), prop_oneof![Just(1.0), 0.0..1.0f64])
            .prop_map(|(wish, unit)| Act::Failed(wish, unit)),
        1 => Just(Act::ProbeReturned),
    ]
}

/// What somebody who only watches a breaker knows of it.
#[derive(Default)]
struct Watched {
    /// Until when the last failure closed it to all.
    until: Option<Instant>,
    /// Until when the probe that is out has it for itself.
    probe_until: Option<Instant>,
    /// Failures since work succeeded while it was closed.
    failures: u32,
}

/// The longest pause after so many failures.
fn longest(policy: &BreakerPolicy, failures: u32) -> Duration {
    let series = RetryPolicy {
        base: policy.base,
        factor: 2,
        cap: policy.cap,
        ..RetryPolicy::default()
    };
    series.backoff(failures, 1.0)
}

/// Goes through a history and fails at the first answer that breaks a rule.
fn judge(policy: &BreakerPolicy, history: &[Act]) -> Result<(), TestCaseError> {
    let mut breaker = Breaker::new(policy.clone());
    let mut watched = Watched::default();
    let mut now = Instant::now();
    for act in history {
        match act {
            Act::Wait(Wait::PartOfCap(part)) => now += policy.cap.mul_f64(*part),
            Act::Wait(Wait::PartOfProbe(part)) => now += policy.probe_timeout.mul_f64(*part),
            Act::Wait(Wait::UntilOpen) => {
                now = watched
                    .probe_until
                    .or(watched.until)
                    .map_or(now, |end| now.max(end));
            }
            Act::Gate => judge_gate(&mut breaker, &mut watched, policy, now)?,
            Act::Succeeded => {
                let was_open = breaker.succeeded();
                prop_assert_eq!(was_open, watched.until.is_some());
                watched = Watched {
                    failures: if was_open { watched.failures } else { 0 },
                    ..Watched::default()
                };
            }
            Act::Reachable => {
                prop_assert_eq!(breaker.reachable(), watched.until.is_some());
                watched = Watched {
                    failures: watched.failures,
                    ..Watched::default()
                };
            }
            Act::Failed(wish, unit) => {
                judge_failure(&mut breaker, &mut watched, policy, (now, *wish, *unit))?;
            }
            Act::ProbeReturned => {
                breaker.probe_returned(now);
                watched.probe_until = None;
            }
        }
        prop_assert_eq!(breaker.is_open(), watched.until.is_some());
    }
    // Whatever happened, who asks after the longest pause and the longest probe may try.
    prop_assert!(!matches!(
        breaker.gate(now + policy.cap.max(policy.probe_timeout)),
        Gate::Open(_)
    ));
    Ok(())
}

fn judge_gate(
    breaker: &mut Breaker,
    watched: &mut Watched,
    policy: &BreakerPolicy,
    now: Instant,
) -> Result<(), TestCaseError> {
    let gate = breaker.gate(now);
    let Some(until) = watched.until else {
        prop_assert_eq!(gate, Gate::Closed, "a closed one lets all through");
        return Ok(());
    };
    let waits_for = watched.probe_until.unwrap_or(until);
    if now < waits_for {
        prop_assert_eq!(
            gate,
            Gate::Open(waits_for),
            "neither work nor a second probe"
        );
        prop_assert!(watched.probe_until.is_some() || waits_for - now <= policy.cap);
    } else {
        prop_assert_eq!(gate, Gate::Probe, "the pause is over, or the probe is lost");
        watched.probe_until = Some(now + policy.probe_timeout);
    }
    Ok(())
}

fn judge_failure(
    breaker: &mut Breaker,
    watched: &mut Watched,
    policy: &BreakerPolicy,
    (now, wish, unit): (Instant, Option<Duration>, f64),
) -> Result<(), TestCaseError> {
    let pause = breaker.failed(now, wish, unit);
    let wish = wish.unwrap_or_default().min(policy.cap);
    match watched.until {
        Some(until) if watched.probe_until.is_none() && now < until => {
            prop_assert_eq!(pause, until - now, "work under way lengthens no pause");
        }
        _ => {
            let before = longest(policy, watched.failures);
            watched.failures += 1;
            let most = longest(policy, watched.failures);
            prop_assert!(most >= before, "no failure makes pauses shorter");
            prop_assert!(
                policy.base <= pause && wish <= pause && pause <= most.max(wish),
                "{pause:?} of {most:?}"
            );
            if unit >= 1.0 {
                prop_assert_eq!(pause, most.max(wish));
            }
            prop_assert_eq!(breaker.pause(), pause);
            *watched = Watched {
                until: Some(now + pause),
                probe_until: None,
                ..*watched
            };
        }
    }
    prop_assert!(pause <= policy.cap, "never open for longer than the cap");
    Ok(())
}

proptest! {
    #[test]
    fn i8_one_probe_at_a_time_and_no_pause_above_the_cap(policy in breaker_policies(), history in proptest::collection::vec(acts(), 0..60)) {
        judge(&policy, &history)?;
    }
}
