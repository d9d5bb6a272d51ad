//! The state machine over any history of one event, with a store's bookkeeping beside it.

use std::time::Duration;

use outbox_core::{
    Answer, Attempt, DeadReason, DeliveryState, ErrorKind, FailureNote, OnDead, RetryPolicy, Scope,
    Step, Verdict, step,
};
use proptest::{collection::vec, prelude::*};

use crate::given::{Answered, Word, answers, retry_policies};

#[derive(Debug, Clone)]
enum Act {
    Claimed,
    KeyBlocked,
    TopicPaused(Duration),
    Answered(Answered, f64, Duration),
    Released,
    Requeued,
    /// Its process died: the lease ends, and the store makes it claimable again.
    Crashed,
    Wait(Duration),
}

fn acts() -> impl Strategy<Value = Act> {
    let seconds = || (0u64..60).prop_map(Duration::from_secs);
    prop_oneof![
        6 => Just(Act::Claimed),
        1 => Just(Act::KeyBlocked),
        1 => seconds().prop_map(Act::TopicPaused),
        6 => (answers(), 0.0..1.0f64, seconds()).prop_map(|(a, unit, pause)| Act::Answered(a, unit, pause)),
        1 => Just(Act::Released),
        1 => Just(Act::Requeued),
        1 => Just(Act::Crashed),
        2 => seconds().prop_map(Act::Wait),
    ]
}

/// The event's row: what a store remembers of it, by the contract of `Lane`.
#[derive(Debug, Clone)]
struct Row {
    state: DeliveryState,
    attempts: u32,
    crashes: u32,
    failing_for: Option<Duration>,
    /// Sends that ended in message scope since it was new or requeued.
    burnt: u32,
}

/// What happened to a row by one act, for the judge.
struct Transition<'a> {
    act: &'a Act,
    before: Row,
    attempt: Attempt,
    state: DeliveryState,
    verdict: Option<Verdict>,
}

impl Row {
    fn new() -> Self {
        Self {
            state: DeliveryState::Pending,
            attempts: 0,
            crashes: 0,
            failing_for: None,
            burnt: 0,
        }
    }

    /// What the claim hands out: one attempt more than the row had, if it is not claimed yet.
    fn attempt(&self) -> Attempt {
        let is_claimed = self.state == DeliveryState::Publishing;
        Attempt {
            number: self.attempts + u32::from(!is_claimed),
            crashes: self.crashes,
            failing_for: self.failing_for,
        }
    }

    /// Lets the machine decide and writes down what it says.
    fn apply<'a>(&mut self, act: &'a Act, policy: &RetryPolicy) -> Option<Transition<'a>> {
        let (before, attempt) = (self.clone(), self.attempt());
        let note = FailureNote::new(Some(ErrorKind::TopicNotFound), "no such topic");
        let with = |event: Step<'_>| step(before.state, attempt, policy, event);
        let (state, verdict) = match act {
            Act::Wait(time) => {
                self.failing_for = self.failing_for.map(|since| since + *time);
                return None;
            }
            Act::Crashed => {
                if self.state == DeliveryState::Publishing {
                    self.state = DeliveryState::Pending;
                    self.crashes += 1;
                }
                return None;
            }
            Act::Claimed => with(Step::Claimed),
            Act::KeyBlocked => with(Step::KeyBlocked),
            Act::TopicPaused(pause) => with(Step::TopicPaused(*pause, &note)),
            Act::Answered(answered, unit, topic_pause) => {
                let answer = Answer {
                    unit: *unit,
                    topic_pause: *topic_pause,
                };
                with(Step::Answered(&answered.outcome(), answer))
            }
            Act::Released => with(Step::Released),
            Act::Requeued => with(Step::Requeued),
        };
        match &verdict {
            Some(Verdict::Retry { .. }) => self.failed(attempt.number),
            Some(Verdict::Defer { .. }) => self.failed(attempt.number - 1),
            Some(Verdict::Hold | Verdict::Return) => self.attempts = attempt.number - 1,
            Some(Verdict::Done | Verdict::Dead { .. }) => self.attempts = attempt.number,
            None if state != before.state && matches!(act, Act::Claimed) => {
                self.attempts = attempt.number;
            }
            None if state != before.state => *self = Self::new(),
            None => {}
        }
        if verdict.is_some() {
            self.crashes = 0;
        }
        self.state = state;
        Some(Transition {
            act,
            before,
            attempt,
            state,
            verdict,
        })
    }

    fn failed(&mut self, attempts: u32) {
        self.attempts = attempts;
        self.failing_for = self.failing_for.or(Some(Duration::ZERO));
    }
}

/// The cause of a death that the documents allow, if any.
fn cause_of_death(t: &Transition<'_>, policy: &RetryPolicy) -> Option<DeadReason> {
    let out_of_patience = t
        .attempt
        .failing_for
        .is_some_and(|time| time >= policy.topic_patience);
    let used_up = |most: u32| (t.attempt.number > most).then_some(DeadReason::AttemptsExhausted);
    match t.act {
        Act::Claimed if t.attempt.crashes >= policy.crashes_max => Some(DeadReason::Crashed),
        Act::Claimed => used_up(policy.attempts_max),
        Act::TopicPaused(_) | Act::Answered(Answered::Not(_, _, Scope::Topic, _), ..) => {
            out_of_patience.then_some(DeadReason::TopicUnavailable)
        }
        Act::Answered(Answered::Not(word, kind, Scope::Message, _), ..) => {
            let no_wait_mends = matches!(
                kind,
                ErrorKind::InvalidEvent | ErrorKind::TooLarge | ErrorKind::InvalidTopic
            );
            match word {
                Word::Rejected => Some(DeadReason::Rejected),
                Word::Failed if no_wait_mends => Some(DeadReason::Rejected),
                Word::Failed | Word::Unknown => used_up(policy.attempts_max - 1),
            }
        }
        _ => None,
    }
}

fn is_final(state: DeliveryState) -> bool {
    matches!(state, DeliveryState::Delivered | DeliveryState::Dead)
}

/// Final states stay; an operator alone wakes a dead one, and then all begins anew.
fn judge_final(t: &Transition<'_>, row: &Row) -> Result<(), TestCaseError> {
    prop_assert_eq!(&t.verdict, &None);
    if t.before.state == DeliveryState::Dead && matches!(t.act, Act::Requeued) {
        prop_assert_eq!(t.state, DeliveryState::Pending);
        prop_assert_eq!(
            (row.attempt().number, row.crashes, row.failing_for),
            (1, 0, None)
        );
    } else {
        prop_assert_eq!(t.state, t.before.state);
    }
    Ok(())
}

/// I3: done is what the broker acknowledged, and all that it acknowledged.
fn judge_done(t: &Transition<'_>) -> Result<(), TestCaseError> {
    let was_acked = t.before.state == DeliveryState::Publishing
        && matches!(t.act, Act::Answered(Answered::Delivered, ..));
    prop_assert_eq!(t.verdict == Some(Verdict::Done), was_acked);
    prop_assert_eq!(t.state == DeliveryState::Delivered, was_acked);
    Ok(())
}

/// I2: what is not delivered waits to be claimed, is under way, or is dead with a reason that fits.
fn judge_visible(t: &Transition<'_>, policy: &RetryPolicy) -> Result<(), TestCaseError> {
    let fits = match &t.verdict {
        None => t.state == t.before.state || t.state == DeliveryState::Publishing,
        Some(Verdict::Done) => t.state == DeliveryState::Delivered,
        Some(Verdict::Dead { .. }) => t.state == DeliveryState::Dead,
        Some(Verdict::Hold) => t.state == DeliveryState::Held,
        Some(Verdict::Return | Verdict::Retry { .. } | Verdict::Defer { .. }) => {
            t.state == DeliveryState::Pending
        }
    };
    prop_assert!(fits, "{:?} with {:?}", t.state, t.verdict);
    // A step that has no meaning in this state (an answer to what was not sent) decides nothing.
    let decides = t.verdict.is_some() || t.state != t.before.state;
    let expected = cause_of_death(t, policy).filter(|_| decides);
    let Some(Verdict::Dead {
        reason,
        note,
        hold_key,
    }) = &t.verdict
    else {
        prop_assert_eq!(expected, None, "it should be dead");
        return Ok(());
    };
    prop_assert_eq!(Some(*reason), expected);
    prop_assert_eq!(*hold_key, policy.on_dead == OnDead::HoldKey);
    prop_assert!(!note.text.is_empty());
    if let Act::Answered(Answered::Not(_, kind, ..), ..) = t.act {
        prop_assert_eq!(note.kind, Some(*kind));
    }
    Ok(())
}

/// I8: attempts and delays stay within the policy; only failures of the event itself burn attempts.
fn judge_bounds(
    t: &Transition<'_>,
    row: &mut Row,
    policy: &RetryPolicy,
) -> Result<(), TestCaseError> {
    if t.state == DeliveryState::Publishing && t.before.state != t.state {
        prop_assert!(
            row.attempts <= policy.attempts_max,
            "sent for the {}th time",
            row.attempts
        );
        prop_assert!(
            row.crashes < policy.crashes_max,
            "sent after {} crashes",
            row.crashes
        );
    }
    let wide = matches!(
        t.act,
        Act::Answered(
            Answered::Not(_, _, Scope::Topic | Scope::Destination, _),
            ..
        )
    );
    let not_sent = matches!(t.act, Act::KeyBlocked | Act::TopicPaused(_) | Act::Released);
    match &t.verdict {
        Some(Verdict::Retry { after, .. }) => {
            prop_assert!(!wide && !not_sent);
            prop_assert!(policy.base <= *after && *after <= policy.cap);
            prop_assert_eq!(row.attempts, t.attempt.number, "it counts");
            row.burnt += 1;
            prop_assert!(row.burnt < policy.attempts_max, "the last one is no retry");
        }
        Some(Verdict::Defer { after, .. }) => {
            prop_assert!(wide || not_sent);
            let (Act::TopicPaused(pause) | Act::Answered(_, _, pause)) = t.act else {
                return Err(TestCaseError::fail("deferred without a pause"));
            };
            prop_assert_eq!(after, pause);
        }
        Some(Verdict::Hold | Verdict::Return) => prop_assert!(wide || not_sent),
        _ => {}
    }
    if (wide || not_sent) && !is_final(t.state) && t.verdict.is_some() {
        prop_assert_eq!(
            row.attempts + 1,
            t.attempt.number,
            "the claim's attempt is given back"
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn i2_i3_i8_hold_in_any_history(policy in retry_policies(), history in vec(acts(), 0..80)) {
        let mut row = Row::new();
        for act in &history {
            let Some(t) = row.apply(act, &policy) else { continue };
            if is_final(t.before.state) {
                judge_final(&t, &row)?;
                continue;
            }
            judge_done(&t)?;
            judge_visible(&t, &policy)?;
            judge_bounds(&t, &mut row, &policy)?;
        }
    }

    /// From wherever it stands, an event that always fails ends, and one that the broker takes is delivered.
    #[test]
    fn i8_every_history_can_be_ended(policy in retry_policies(), history in vec(acts(), 0..40), word in 1u8..3) {
        let mut row = Row::new();
        for act in &history {
            row.apply(act, &policy);
        }
        row.apply(&Act::Requeued, &policy);
        if row.state == DeliveryState::Delivered {
            return Ok(());
        }
        let word = if word == 1 { Word::Failed } else { Word::Unknown };
        let fails = Act::Answered(Answered::Not(word, ErrorKind::Refused, Scope::Message, None), 0.5, Duration::ZERO);
        let taken = Act::Answered(Answered::Delivered, 0.5, Duration::ZERO);
        let mut good = row.clone();
        good.apply(&Act::Claimed, &policy);
        let sent = good.state == DeliveryState::Publishing;
        good.apply(&taken, &policy);
        prop_assert_eq!(good.state, if sent { DeliveryState::Delivered } else { DeliveryState::Dead });
        for _ in 0..=policy.attempts_max {
            row.apply(&Act::Claimed, &policy);
            row.apply(&fails, &policy);
        }
        prop_assert_eq!(row.state, DeliveryState::Dead);
    }
}
