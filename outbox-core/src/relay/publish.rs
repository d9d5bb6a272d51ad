//! Sends a planned batch, wave by wave, and collects an outcome per event that was sent.

use std::{collections::BTreeSet, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use tokio::time::{Instant, timeout};
use tracing::Span;

use super::{
    mutation::Mutation,
    plan::{Decision, Plan},
    route::RouteContext,
};
use crate::{
    directive::{Directive, classify},
    error::{Error, ErrorKind, Scope},
    outcome::Outcome,
    retry::OnDead,
    store::Batch,
    stored_event::StoredEvent,
};

/// A batch after its attempt.
pub(super) struct Published {
    pub(super) batch: Batch,
    pub(super) plan: Plan,
    /// An outcome for each event that was sent.
    pub(super) outcomes: Vec<Option<Outcome>>,
}

pub(super) async fn publish(context: Arc<RouteContext>, batch: Batch, plan: Plan) -> Published {
    let outcomes = if plan.waves == 1
        && plan
            .decisions
            .iter()
            .all(|d| matches!(d, Decision::Send { .. }))
    {
        attempt(&context, &batch.events).await
    } else {
        publish_waves(&context, &batch, &plan).await
    };
    if let Some(error) = outcomes.iter().flatten().find_map(Outcome::error) {
        Span::current()
            .record("otel.status_code", "ERROR")
            .record("error.type", error.kind().as_str());
    }
    Published {
        batch,
        plan,
        outcomes,
    }
}

/// What earlier waves of the batch found out.
#[derive(Default)]
struct Found<'a> {
    destination_failed: bool,
    topics_failed: BTreeSet<&'a str>,
    keys_failed: BTreeSet<&'a str>,
}

impl<'a> Found<'a> {
    fn allows(&self, event: &StoredEvent) -> bool {
        let key_failed = event
            .key
            .as_deref()
            .is_some_and(|key| self.keys_failed.contains(key));
        !self.destination_failed
            && !self.topics_failed.contains(event.topic.as_str())
            && !key_failed
    }

    /// What is not sent holds back what follows of its key.
    fn skip(&mut self, context: &RouteContext, event: &'a StoredEvent) {
        if let (true, Some(key)) = (context.ordered, &event.key) {
            self.keys_failed.insert(key);
        }
    }

    /// What became of it; `None`: it was not sent.
    fn note(&mut self, context: &RouteContext, event: &'a StoredEvent, outcome: Option<&Outcome>) {
        match outcome {
            Some(outcome) => self.learn(context, event, outcome),
            None => self.skip(context, event),
        }
    }

    fn learn(&mut self, context: &RouteContext, event: &'a StoredEvent, outcome: &Outcome) {
        let Some(error) = outcome.error() else { return };
        match error.failure_scope() {
            Scope::Destination => self.destination_failed = true,
            Scope::Topic => {
                self.topics_failed.insert(&event.topic);
            }
            Scope::Message => {}
        }
        let skipped = classify(outcome) == Directive::DeadLetter
            && context.policy(&event.topic).on_dead == OnDead::Skip;
        if !skipped {
            self.skip(context, event);
        }
    }
}

async fn publish_waves(context: &RouteContext, batch: &Batch, plan: &Plan) -> Vec<Option<Outcome>> {
    let mut outcomes: Vec<Option<Outcome>> = batch.events.iter().map(|_| None).collect();
    let mut found = Found::default();
    for wave in 0..plan.waves {
        let of_wave = plan.decisions.iter().enumerate().filter(
            |(_, decision)| matches!(decision, Decision::Send { wave: w, .. } if *w == wave),
        );
        let mut sent: Vec<usize> = Vec::new();
        for (index, _) in of_wave {
            let event = &batch.events[index];
            if found.allows(event) {
                sent.push(index);
            } else {
                found.skip(context, event);
            }
        }
        if sent.is_empty() {
            continue;
        }
        // Only mixed batches come here; a copy of an event shares its payload.
        let events: Vec<StoredEvent> = sent
            .iter()
            .map(|index| batch.events[*index].clone())
            .collect();
        let answers = attempt(context, &events).await;
        for (index, outcome) in sent.into_iter().zip(answers) {
            found.note(context, &batch.events[index], outcome.as_ref());
            outcomes[index] = outcome;
        }
    }
    outcomes
}

/// One attempt for each event, `None` for what was not sent after all. A publisher that breaks its contract (panics, never answers, answers
/// for another number of events) costs attempts or a pause, never an event.
async fn attempt(context: &RouteContext, events: &[StoredEvent]) -> Vec<Option<Outcome>> {
    let started = Instant::now();
    let answers = match call(context, events).await {
        Ok(outcomes) => outcomes.into_iter().map(Some).collect(),
        Err(Panicked) if events.len() > 1 => one_by_one(context, events).await,
        Err(Panicked) => vec![Some(panicked())],
    };
    context
        .telemetry
        .publish_seconds
        .record(started.elapsed().as_secs_f64());
    answers
}

/// One of them makes the publisher panic: alone each answers for itself. What one of them found out
/// holds back those behind it, as between waves.
async fn one_by_one(context: &RouteContext, events: &[StoredEvent]) -> Vec<Option<Outcome>> {
    let mut found = Found::default();
    let mut outcomes = Vec::with_capacity(events.len());
    for event in events {
        let allowed = found.allows(event) || context.mutated(Mutation::PanicForgetsKeys);
        let outcome = if allowed {
            match call(context, std::slice::from_ref(event)).await {
                Ok(mut outcome) => outcome.pop(),
                Err(Panicked) => Some(panicked()),
            }
        } else {
            None
        };
        found.note(context, event, outcome.as_ref());
        outcomes.push(outcome);
    }
    outcomes
}

/// The outcome of an event that the publisher would not even send.
pub(super) fn refused(context: &RouteContext, event: &StoredEvent) -> Option<Outcome> {
    let validate = AssertUnwindSafe(|| context.publisher.validate(event));
    let outcome = match std::panic::catch_unwind(validate) {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => Outcome::Rejected(error.scope(Scope::Message)),
        Err(_panic) => panicked(),
    };
    if let Some(error) = outcome.error() {
        context.telemetry.failure(&outcome, error);
    }
    Some(outcome)
}

struct Panicked;

async fn call(context: &RouteContext, events: &[StoredEvent]) -> Result<Vec<Outcome>, Panicked> {
    let unknown = |kind, what: String| {
        let error =
            Error::new(kind, "publish", what).context("publisher", context.publisher.name());
        Ok(events
            .iter()
            .map(|_| Outcome::Unknown(error.copy()))
            .collect())
    };
    let deadline = context.config.publish_timeout;
    let call = AssertUnwindSafe(context.publisher.publish(events)).catch_unwind();
    match timeout(deadline, call).await {
        Ok(Ok(outcomes)) if outcomes.len() == events.len() => Ok(outcomes),
        Ok(Ok(outcomes)) => unknown(
            ErrorKind::Internal,
            format!("{} outcomes for {} events", outcomes.len(), events.len()),
        ),
        Ok(Err(_panic)) => Err(Panicked),
        Err(_elapsed) => unknown(ErrorKind::Timeout, format!("no answer within {deadline:?}")),
    }
}

fn panicked() -> Outcome {
    Outcome::Unknown(Error::new(
        ErrorKind::Panic,
        "publish",
        "the publisher panicked",
    ))
}
