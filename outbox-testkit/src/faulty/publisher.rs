//! A publisher whose calls and events fail on command.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{Capabilities, Error, ErrorKind, Outcome, Publisher, Result, StoredEvent};

use super::script::Script;

/// What happens to a whole call of `publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishFault {
    /// Nothing is sent; every outcome is `Failed` of this kind, in its usual scope.
    Fail(ErrorKind),
    /// Everything lands, and every outcome is `Unknown` of this kind: the answers are lost.
    LandThenFail(ErrorKind),
    /// The first so many land; the rest is not sent. All outcomes are `Unknown` of this kind.
    LandSome(usize, ErrorKind),
    /// The event at this index (from 0) is not sent and is `Rejected` of this kind, in message
    /// scope; the others land.
    RejectNth(usize, ErrorKind),
    /// It never ends; nothing is sent.
    Hang,
    /// Everything is sent after this delay.
    Slow(Duration),
    /// Everything is sent at once and answered after this delay.
    SlowAnswer(Duration),
    /// It panics; nothing is sent.
    Panic,
    /// Everything lands; the last outcome is missing.
    WrongCount,
}

type EventRule = Box<dyn FnMut(&StoredEvent) -> Option<Outcome> + Send>;

/// Wraps a publisher. Faults of calls come from the [`Script`]; faults of single events from a rule
/// over events. An event that the rule answers for is not sent.
pub struct FaultyPublisher {
    inner: Arc<dyn Publisher>,
    script: Script<(), PublishFault>,
    event_rule: Mutex<Option<EventRule>>,
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
}

impl FaultyPublisher {
    /// Passes everything until told otherwise.
    pub fn new(inner: Arc<dyn Publisher>) -> Self {
        Self {
            inner,
            script: Script::default(),
            event_rule: Mutex::default(),
            outcomes: Mutex::default(),
        }
    }

    /// Faults of calls; there is one sort of call.
    pub fn script(&self) -> &Script<(), PublishFault> {
        &self.script
    }

    /// Asks the rule about each event of each call; `Some` is its outcome, and it is not sent.
    pub fn on_event(&self, rule: impl FnMut(&StoredEvent) -> Option<Outcome> + Send + 'static) {
        *self
            .event_rule
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Box::new(rule));
    }

    /// Ends the rule over events.
    pub fn clear_events(&self) {
        *self
            .event_rule
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How many outcomes of this name (`delivered`, `rejected`, `failed`, `unknown`) were answered.
    pub fn answered(&self, outcome: &str) -> u64 {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.get(outcome).copied().unwrap_or_default()
    }

    /// Publishes those events that the rule does not answer for; outcomes in the events' order.
    async fn pass(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let mut answers: Vec<Option<Outcome>> = {
            let mut rule = self
                .event_rule
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match rule.as_mut() {
                Some(rule) => events.iter().map(rule).collect(),
                None => events.iter().map(|_| None).collect(),
            }
        };
        let sent: Vec<StoredEvent> = events
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(event, _)| event.clone())
            .collect();
        let mut landed = self.inner.publish(&sent).await.into_iter();
        for answer in &mut answers {
            if answer.is_none() {
                *answer = landed.next();
            }
        }
        answers.into_iter().flatten().collect()
    }

    async fn faulty(&self, events: &[StoredEvent], fault: PublishFault) -> Vec<Outcome> {
        let unknown = |kind| {
            events
                .iter()
                .map(|_| Outcome::Unknown(scripted(kind)))
                .collect()
        };
        match fault {
            PublishFault::Fail(kind) => events
                .iter()
                .map(|_| Outcome::Failed(scripted(kind)))
                .collect(),
            PublishFault::LandThenFail(kind) => {
                self.pass(events).await;
                unknown(kind)
            }
            PublishFault::LandSome(count, kind) => {
                self.pass(&events[..count.min(events.len())]).await;
                unknown(kind)
            }
            PublishFault::RejectNth(nth, kind) => self.all_but(events, nth, kind).await,
            PublishFault::Hang => std::future::pending().await,
            PublishFault::Slow(delay) => {
                tokio::time::sleep(delay).await;
                self.pass(events).await
            }
            PublishFault::SlowAnswer(delay) => {
                let outcomes = self.pass(events).await;
                tokio::time::sleep(delay).await;
                outcomes
            }
            PublishFault::Panic => panic!("scripted panic in publish"),
            PublishFault::WrongCount => {
                let mut outcomes = self.pass(events).await;
                outcomes.pop();
                outcomes
            }
        }
    }

    async fn all_but(&self, events: &[StoredEvent], nth: usize, kind: ErrorKind) -> Vec<Outcome> {
        if nth >= events.len() {
            return self.pass(events).await;
        }
        let others = [&events[..nth], &events[nth + 1..]].concat();
        let mut outcomes = self.pass(&others).await;
        let error = scripted(kind).scope(outbox_core::Scope::Message);
        outcomes.insert(nth.min(outcomes.len()), Outcome::Rejected(error));
        outcomes
    }
}

fn scripted(kind: ErrorKind) -> Error {
    Error::new(kind, "scripted fault", "as the test ordered")
}

#[async_trait]
impl Publisher for FaultyPublisher {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        self.inner.validate(event)
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let outcomes = match self.script.take(()) {
            None => self.pass(events).await,
            Some(fault) => self.faulty(events, fault).await,
        };
        let mut counts = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        for outcome in &outcomes {
            *counts.entry(outcome.as_str()).or_default() += 1;
        }
        drop(counts);
        outcomes
    }

    async fn check(&self) -> Result<()> {
        self.inner.check().await
    }

    async fn close(&self, grace: Duration) {
        self.inner.close(grace).await;
    }
}
