//! The delivery state machine of one event: pure, with no I/O, clock or random source.
//!
//! It works with delays, never with points in time, so it needs no clock at all: the store adds a
//! delay to its own clock (I12). Attempts arrive counted by the claim; the machine never adds.

use std::time::Duration;

use crate::{
    directive::{Directive, classify},
    outcome::Outcome,
    retry::{OnDead, RetryPolicy},
    store::{DeadReason, FailureNote, Verdict},
};

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryState {
    /// Waiting for its turn, or for its next attempt.
    Pending,
    /// Behind an earlier event of its key.
    Held,
    /// Claimed and handed to the publisher.
    Publishing,
    /// Acknowledged. Final.
    Delivered,
    /// Not tried again without an operator.
    Dead,
}

/// What the claim said about the event: the counters that decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Which attempt this is, counted before the work; 1 at the first.
    pub number: u32,
    /// Deaths of a process with this event in flight.
    pub crashes: u32,
    /// How long ago it first failed.
    pub failing_for: Option<Duration>,
}

/// What happens to the event.
#[derive(Debug)]
pub enum Step<'a> {
    /// A claim took it.
    Claimed,
    /// An earlier event of its key is not delivered yet.
    KeyBlocked,
    /// Its topic's breaker is open for this long.
    TopicPaused(Duration, &'a FailureNote),
    /// The publisher answered; `pause` is the breaker's delay, should topic or destination be at fault.
    Answered(&'a Outcome, Answer),
    /// It was claimed and not sent: the claim is given back.
    Released,
    /// An operator wants it tried again.
    Requeued,
}

/// What the caller adds to an outcome.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The random number for the backoff, in 0..1.
    pub unit: f64,
    /// The delay that the topic's breaker asks for.
    pub topic_pause: Duration,
}

/// One transition. `None` as verdict means: go on (publish it, or there is nothing to write).
/// A step that does not fit the state changes nothing; final states stay.
pub fn step(
    state: DeliveryState,
    attempt: Attempt,
    policy: &RetryPolicy,
    step: Step<'_>,
) -> (DeliveryState, Option<Verdict>) {
    use DeliveryState as S;
    match (state, step) {
        (S::Pending | S::Held, Step::Claimed) => admit(attempt, policy),
        (S::Pending | S::Publishing, Step::KeyBlocked) => (S::Held, Some(Verdict::Hold)),
        (S::Pending | S::Publishing, Step::TopicPaused(after, note)) => {
            pause_topic(attempt, policy, after, note.clone())
        }
        (S::Publishing, Step::Answered(outcome, answer)) => {
            answered(attempt, policy, outcome, answer)
        }
        (S::Publishing, Step::Released) => (S::Pending, Some(Verdict::Return)),
        (S::Dead, Step::Requeued) => (S::Pending, None),
        (state, _) => (state, None),
    }
}

/// What can be decided before the work: an event that killed its process, or used up its attempts
/// by leases that ran out, is not sent again.
fn admit(attempt: Attempt, policy: &RetryPolicy) -> (DeliveryState, Option<Verdict>) {
    if attempt.crashes >= policy.crashes_max {
        let text = format!(
            "crashed {} times with this event in flight",
            attempt.crashes
        );
        return dead(policy, DeadReason::Crashed, FailureNote::new(None, &text));
    }
    if attempt.number > policy.attempts_max {
        let text = format!("{} attempts ended without an answer", attempt.number - 1);
        return dead(
            policy,
            DeadReason::AttemptsExhausted,
            FailureNote::new(None, &text),
        );
    }
    (DeliveryState::Publishing, None)
}

fn answered(
    attempt: Attempt,
    policy: &RetryPolicy,
    outcome: &Outcome,
    answer: Answer,
) -> (DeliveryState, Option<Verdict>) {
    let note = outcome
        .error()
        .map(FailureNote::from_error)
        .unwrap_or_default();
    match classify(outcome) {
        Directive::Done => (DeliveryState::Delivered, Some(Verdict::Done)),
        Directive::DeadLetter => dead(policy, DeadReason::Rejected, note),
        Directive::Retry if attempt.number >= policy.attempts_max => {
            dead(policy, DeadReason::AttemptsExhausted, note)
        }
        Directive::Retry => {
            let backoff = policy.backoff(attempt.number, answer.unit);
            let wished = outcome
                .error()
                .and_then(crate::Error::retry_delay)
                .unwrap_or_default();
            let after = backoff.max(wished.min(policy.cap));
            (DeliveryState::Pending, Some(Verdict::Retry { after, note }))
        }
        Directive::PauseTopic => pause_topic(attempt, policy, answer.topic_pause, note),
        Directive::PauseDestination => (DeliveryState::Pending, Some(Verdict::Return)),
    }
}

fn pause_topic(
    attempt: Attempt,
    policy: &RetryPolicy,
    after: Duration,
    note: FailureNote,
) -> (DeliveryState, Option<Verdict>) {
    if attempt
        .failing_for
        .is_some_and(|time| time >= policy.topic_patience)
    {
        return dead(policy, DeadReason::TopicUnavailable, note);
    }
    (DeliveryState::Pending, Some(Verdict::Defer { after, note }))
}

fn dead(
    policy: &RetryPolicy,
    reason: DeadReason,
    note: FailureNote,
) -> (DeliveryState, Option<Verdict>) {
    let hold_key = policy.on_dead == OnDead::HoldKey;
    (
        DeliveryState::Dead,
        Some(Verdict::Dead {
            reason,
            note,
            hold_key,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn i9_crashes_and_exhausted_leases_are_dead_before_the_work() {
        let policy = RetryPolicy::default();
        let claimed = |number, crashes| {
            step(
                DeliveryState::Pending,
                Attempt {
                    number,
                    crashes,
                    failing_for: None,
                },
                &policy,
                Step::Claimed,
            )
        };
        assert_eq!(claimed(10, 4), (DeliveryState::Publishing, None));
        let (_, crashed) = claimed(5, 5);
        assert!(
            matches!(crashed, Some(Verdict::Dead { reason: DeadReason::Crashed, ref note, .. }) if note.text.contains("crashed 5 times"))
        );
        let (_, exhausted) = claimed(11, 1);
        assert!(matches!(
            exhausted,
            Some(Verdict::Dead {
                reason: DeadReason::AttemptsExhausted,
                ..
            })
        ));
    }

    #[test]
    fn a_topic_is_waited_for_until_patience_ends() {
        let policy = RetryPolicy::default();
        let note = FailureNote::new(Some(ErrorKind::TopicNotFound), "no such stream");
        let paused = |failing_for| {
            let attempt = Attempt {
                number: 400,
                crashes: 0,
                failing_for,
            };
            step(
                DeliveryState::Pending,
                attempt,
                &policy,
                Step::TopicPaused(Duration::from_secs(3), &note),
            )
            .1
        };
        assert!(matches!(paused(None), Some(Verdict::Defer { .. })));
        assert!(matches!(
            paused(Some(policy.topic_patience)),
            Some(Verdict::Dead {
                reason: DeadReason::TopicUnavailable,
                ..
            })
        ));
    }
}
