//! Turns the outcomes of a batch into verdicts, and tells the breakers what was learnt.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    gates::TopicGate,
    mutation::Mutation,
    plan::{BlockedKeys, Decision, attempt_of, parks},
    publish::Published,
    route::RouteContext,
    settle::Work,
};
use crate::{
    delivery::{Answer, DeliveryState, Step, step},
    error::{Error, Scope},
    outcome::Outcome,
    store::{BatchSource, Settlement, Verdict},
    stored_event::StoredEvent,
};

/// What an earlier event of the batch left for the later ones of its key.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Parked,
    Returned,
}

/// `settlements` already holds the verdicts on unreadable rows.
pub(super) fn conclude(
    context: &RouteContext,
    published: Published,
    claimed_at: Instant,
    mut settlements: Vec<Settlement>,
    blocked: &mut BlockedKeys,
) -> Work {
    let Published {
        batch,
        plan,
        outcomes,
    } = published;
    let now = Instant::now();
    let pauses = inform_gates(context, &batch.events, &outcomes, now);
    let stream = batch.source == BatchSource::Stream;
    let age_at_claim = |event: &StoredEvent| {
        (batch.claimed_at - event.created_at)
            .as_seconds_f64()
            .max(0.0)
    };
    let unreadable = settlements.len();
    let since_claim = (now - claimed_at).as_secs_f64();

    let mut fates: BTreeMap<&str, Fate> = BTreeMap::new();
    let mut rewinds = false;
    let mut done: BTreeMap<String, u64> = BTreeMap::new();
    let mut parked: BTreeSet<String> = BTreeSet::new();
    settlements.reserve(batch.events.len());
    for ((event, decision), outcome) in batch.events.iter().zip(plan.decisions).zip(&outcomes) {
        let key = event.key.as_deref().filter(|_| context.ordered);
        let fate = key.and_then(|key| fates.get(key).copied());
        let verdict = match (decision, outcome) {
            // The cursor can't pass what is returned: everything behind it comes again (I5).
            _ if rewinds => Verdict::Return,
            (Decision::Settle(verdict), _) => verdict,
            (Decision::Send { topic_probe, .. }, outcome) => {
                if topic_probe && outcome.is_none() {
                    context.gates.topic_probe_returned(&event.topic, now);
                }
                let was_delivered = outcome.as_ref().is_some_and(Outcome::is_delivered);
                if was_delivered && fate == Some(Fate::Parked) {
                    context.telemetry.order_exceptions.increment(1);
                }
                match (fate, outcome) {
                    (Some(Fate::Parked), _) => Verdict::Hold,
                    (Some(Fate::Returned), _) => Verdict::Return,
                    (None, Some(outcome)) => answered(context, event, outcome, &pauses),
                    (None, None) => not_sent(context, event, now),
                }
            }
        };
        match &verdict {
            Verdict::Done => {
                context
                    .telemetry
                    .enqueue_to_publish_seconds
                    .record(age_at_claim(event) + since_claim);
                context.telemetry.attempts.record(f64::from(event.attempts));
                match done.get_mut(&event.topic) {
                    Some(count) => *count += 1,
                    None => {
                        done.insert(event.topic.clone(), 1);
                    }
                }
            }
            Verdict::Retry { .. } => context.telemetry.retries.increment(1),
            Verdict::Return if context.ordered && stream => rewinds = true,
            _ => {}
        }
        if let Some(key) = key {
            if parks(&verdict) {
                fates.insert(key, Fate::Parked);
                blocked.insert(key.to_owned());
                parked.insert(key.to_owned());
            } else if verdict == Verdict::Return {
                fates.insert(key, Fate::Returned);
            }
        }
        settlements.push(Settlement {
            position: event.position,
            verdict,
        });
    }
    if rewinds {
        return_behind(&mut settlements, unreadable);
    }
    Work {
        token: batch.token,
        settlements,
        done,
        parked,
        rewinds,
    }
}

/// The first settlements are those of unreadable rows: one behind a returned event comes again with it.
fn return_behind(settlements: &mut [Settlement], unreadable: usize) {
    let (rows, events) = settlements.split_at_mut(unreadable);
    let first = events.iter().find(|of| of.verdict == Verdict::Return);
    let Some(first) = first.map(|of| of.position) else {
        return;
    };
    for row in rows.iter_mut().filter(|row| row.position > first) {
        row.verdict = Verdict::Return;
    }
}

fn answered(
    context: &RouteContext,
    event: &StoredEvent,
    outcome: &Outcome,
    pauses: &BTreeMap<&str, Duration>,
) -> Verdict {
    let mutated = |mutation| context.mutated(mutation);
    if outcome.is_delivered()
        || mutated(Mutation::UnknownIsDelivered) && matches!(outcome, Outcome::Unknown(_))
    {
        return Verdict::Done;
    }
    let own = match outcome.error() {
        Some(error) if mutated(Mutation::OutageBurnsAttempts) => {
            Some(Outcome::Failed(error.copy().scope(Scope::Message)))
        }
        _ => None,
    };
    let outcome = own.as_ref().unwrap_or(outcome);
    let topic_pause = pauses
        .get(event.topic.as_str())
        .copied()
        .unwrap_or_default();
    let answer = Answer {
        unit: context.jitter.unit(),
        topic_pause,
    };
    let policy = context.policy(&event.topic);
    let (_, verdict) = step(
        DeliveryState::Publishing,
        attempt_of(event),
        policy,
        Step::Answered(outcome, answer),
    );
    let verdict = verdict.unwrap_or(Verdict::Return);
    context.log_verdict(event, &verdict);
    verdict
}

/// An earlier wave found the topic or the destination at fault before this one was sent.
fn not_sent(context: &RouteContext, event: &StoredEvent, now: Instant) -> Verdict {
    let policy = context.policy(&event.topic);
    match context.gates.topic(&event.topic, now) {
        TopicGate::Open(pause, note) => {
            let paused = Step::TopicPaused(pause, &note);
            step(DeliveryState::Publishing, attempt_of(event), policy, paused)
                .1
                .unwrap_or(Verdict::Return)
        }
        TopicGate::Probe => {
            context.gates.topic_probe_returned(&event.topic, now);
            Verdict::Return
        }
        TopicGate::Closed => Verdict::Return,
    }
}

/// Reports each fault once and each recovery; returns how long the failed topics wait.
fn inform_gates<'a>(
    context: &RouteContext,
    events: &'a [StoredEvent],
    outcomes: &[Option<Outcome>],
    now: Instant,
) -> BTreeMap<&'a str, Duration> {
    let mut destination: Option<&Error> = None;
    let mut topics_failed: BTreeMap<&str, &Error> = BTreeMap::new();
    let mut topics_delivered: BTreeSet<&str> = BTreeSet::new();
    let mut any_answer = false;
    for (event, outcome) in events.iter().zip(outcomes) {
        let Some(outcome) = outcome else { continue };
        let Some(error) = outcome.error() else {
            topics_delivered.insert(&event.topic);
            any_answer = true;
            continue;
        };
        context.telemetry.failure(outcome, error);
        let widened = context.mutated(Mutation::TopicPausesRoute);
        match error.failure_scope() {
            Scope::Topic if widened => destination = destination.or(Some(error)),
            Scope::Destination => destination = destination.or(Some(error)),
            Scope::Topic => {
                topics_failed.entry(&event.topic).or_insert(error);
                any_answer = true;
            }
            Scope::Message => any_answer = true,
        }
    }
    if let Some(error) = destination {
        context.destination_failed(now, error);
    } else if any_answer {
        context.destination_answered();
    }
    for topic in topics_delivered
        .iter()
        .filter(|topic| !topics_failed.contains_key(**topic))
    {
        context.gates.topic_delivered(topic);
    }
    topics_failed
        .into_iter()
        .map(|(topic, error)| (topic, context.topic_failed(topic, now, error)))
        .collect()
}
