//! Decides, before anything is sent, what becomes of each event of a batch: settled at once, or
//! sent in which wave.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{gates::TopicGate, mutation::Mutation, publish::refused, route::RouteContext};
use crate::{
    delivery::{Answer, Attempt, DeliveryState, Step, step},
    retry::OnDead,
    store::{Batch, BatchSource, DeadReason, FailureNote, Settlement, Verdict},
    stored_event::StoredEvent,
};

/// Keys with parked events, as far as this lane knows.
pub(super) type BlockedKeys = BTreeSet<String>;

/// What is done with one event.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Not sent.
    Settle(Verdict),
    /// Sent together with the others of its wave.
    Send {
        wave: usize,
        /// The answer decides for the other events of its topic.
        topic_probe: bool,
    },
}

/// A decision per event of the batch, in their order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) decisions: Vec<Decision>,
    pub(super) waves: usize,
}

impl Plan {
    /// Keys that the plan parks something of.
    pub(super) fn parked_keys(&self, batch: &Batch) -> BTreeSet<String> {
        let parked = |(event, decision): (&StoredEvent, &Decision)| match decision {
            Decision::Settle(verdict) if parks(verdict) => event.key.clone(),
            _ => None,
        };
        batch
            .events
            .iter()
            .zip(&self.decisions)
            .filter_map(parked)
            .collect()
    }
}

pub(super) fn attempt_of(event: &StoredEvent) -> Attempt {
    Attempt {
        number: event.attempts,
        crashes: event.crashes,
        failing_for: event.failing_for,
    }
}

/// The verdict on rows that are no events: dead, since no waiting mends them.
pub(super) fn unreadable_settlements(
    context: &RouteContext,
    batch: &Batch,
    blocked: &mut BlockedKeys,
) -> Vec<Settlement> {
    let hold_key = context.policy("").on_dead == OnDead::HoldKey;
    batch
        .unreadable
        .iter()
        .map(|row| {
            context.log_unreadable(row);
            context.telemetry.dead(DeadReason::Unreadable);
            if let (true, true, Some(key)) = (context.ordered, hold_key, &row.key) {
                blocked.insert(key.clone());
            }
            let note = FailureNote::from_error(&row.error);
            let verdict = Verdict::Dead {
                reason: DeadReason::Unreadable,
                note,
                hold_key,
            };
            Settlement {
                position: row.position,
                verdict,
            }
        })
        .collect()
}

pub(super) fn plan(
    context: &RouteContext,
    batch: &Batch,
    blocked: &mut BlockedKeys,
    now: Instant,
) -> Plan {
    let mut planner = Planner {
        context,
        stream: batch.source == BatchSource::Stream,
        now,
        parked: BTreeSet::new(),
        key_waves: BTreeMap::new(),
        topic_waves: BTreeMap::new(),
        paused: BTreeMap::new(),
        waves: 0,
    };
    let decisions = batch
        .events
        .iter()
        .map(|event| planner.decide(event, blocked))
        .collect();
    Plan {
        decisions,
        waves: planner.waves,
    }
}

struct Planner<'a> {
    context: &'a RouteContext,
    stream: bool,
    now: Instant,
    /// Keys of which this batch parks something: later events of theirs wait, whatever the source.
    parked: BTreeSet<&'a str>,
    /// The wave of the last event of each key.
    key_waves: BTreeMap<&'a str, usize>,
    /// The first wave behind a topic's probe.
    topic_waves: BTreeMap<&'a str, usize>,
    paused: BTreeMap<&'a str, (Duration, FailureNote)>,
    waves: usize,
}

impl<'a> Planner<'a> {
    fn decide(&mut self, event: &'a StoredEvent, blocked: &mut BlockedKeys) -> Decision {
        let policy = self.context.policy(&event.topic);
        let attempt = attempt_of(event);
        let key = event.key.as_deref().filter(|_| self.context.ordered);
        let waits = |key: &str| self.parked.contains(key) || self.stream && blocked.contains(key);
        if key.is_some_and(waits) && !self.context.mutated(Mutation::RetryOvertakesKey) {
            return Decision::Settle(Verdict::Hold);
        }
        let (state, verdict) = step(DeliveryState::Pending, attempt, policy, Step::Claimed);
        if let Some(verdict) = verdict {
            self.context.log_verdict(event, &verdict);
            return self.settle(key, verdict, blocked);
        }
        if let Some(outcome) = refused(self.context, event) {
            let answer = Answer {
                unit: self.context.jitter.unit(),
                topic_pause: Duration::ZERO,
            };
            let (_, verdict) = step(state, attempt, policy, Step::Answered(&outcome, answer));
            let verdict = verdict.unwrap_or(Verdict::Return);
            self.context.log_verdict(event, &verdict);
            return self.settle(key, verdict, blocked);
        }
        let topic_probe = match self.topic_gate(&event.topic) {
            TopicGate::Open(pause, note) => {
                let (_, verdict) = step(state, attempt, policy, Step::TopicPaused(pause, &note));
                return self.settle(key, verdict.unwrap_or(Verdict::Return), blocked);
            }
            TopicGate::Probe => true,
            TopicGate::Closed => false,
        };
        let mut wave = self
            .topic_waves
            .get(event.topic.as_str())
            .copied()
            .unwrap_or(0);
        if let Some(key) = key {
            let next = usize::from(self.context.waves);
            wave = self
                .key_waves
                .get(key)
                .map_or(wave, |last| wave.max(last + next));
            self.key_waves.insert(key, wave);
        }
        if topic_probe {
            self.topic_waves.insert(&event.topic, wave + 1);
        }
        self.waves = self.waves.max(wave + 1);
        Decision::Send { wave, topic_probe }
    }

    /// A verdict that parks the event blocks its key for what follows.
    fn settle(
        &mut self,
        key: Option<&'a str>,
        verdict: Verdict,
        blocked: &mut BlockedKeys,
    ) -> Decision {
        if let (Some(key), true) = (key, parks(&verdict)) {
            self.parked.insert(key);
            blocked.insert(key.to_owned());
        }
        Decision::Settle(verdict)
    }

    /// Asks a topic's breaker once per batch; behind a probe the others of the topic wait a wave.
    fn topic_gate(&mut self, topic: &'a str) -> TopicGate {
        if self.topic_waves.contains_key(topic) {
            return TopicGate::Closed;
        }
        if let Some((pause, note)) = self.paused.get(topic) {
            return TopicGate::Open(*pause, note.clone());
        }
        let gate = self.context.gates.topic(topic, self.now);
        if let TopicGate::Open(pause, note) = &gate {
            self.paused.insert(topic, (*pause, note.clone()));
        }
        gate
    }
}

/// Whether the event stays behind, off the stream, and its key with it.
pub(super) fn parks(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Retry { .. } | Verdict::Defer { .. } | Verdict::Hold => true,
        Verdict::Dead { hold_key, .. } => *hold_key,
        Verdict::Done | Verdict::Return => false,
    }
}
