//! The breakers of a route, shared by its lanes: one for the destination, one per failing topic.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::changes::{Changes, Watch};
use crate::{
    breaker::{Breaker, BreakerPolicy, Gate},
    error::Error,
    store::FailureNote,
};

/// Failing topics that are remembered at the most (I8). A topic beyond it is deferred by the
/// longest pause each time it fails.
const TOPICS_MAX: usize = 1000;

/// Random numbers of the relay, from one seed.
#[derive(Debug)]
pub(super) struct Jitter(Mutex<StdRng>);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// The next number in 0..1.
    pub(super) fn unit(&self) -> f64 {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random()
    }
}

/// Whether events of a topic may be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TopicGate {
    Closed,
    /// One event may, and it decides for the others.
    Probe,
    /// Not for this long, because of this.
    Open(Duration, FailureNote),
}

#[derive(Debug)]
struct Inner {
    destination: Breaker,
    topics: BTreeMap<String, (Breaker, FailureNote)>,
}

#[derive(Debug)]
pub(super) struct Gates {
    policy: BreakerPolicy,
    /// Wakes lanes that wait for the destination's breaker.
    changed: Changes,
    inner: Mutex<Inner>,
}

impl Gates {
    pub(super) fn new(policy: &BreakerPolicy) -> Self {
        let inner = Inner {
            destination: Breaker::new(policy.clone()),
            topics: BTreeMap::new(),
        };
        Self {
            policy: policy.clone(),
            changed: Changes::default(),
            inner: Mutex::new(inner),
        }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes of the destination's breaker, so that no lane sleeps through its closing.
    pub(super) fn watch(&self) -> Watch {
        self.changed.watch()
    }

    /// Asks for leave to claim; a probe granted must be answered or returned.
    pub(super) fn destination(&self, now: Instant) -> Gate {
        self.inner().destination.gate(now)
    }

    pub(super) fn is_open(&self) -> bool {
        self.inner().destination.is_open()
    }

    pub(super) fn destination_failed(&self, now: Instant, error: &Error, unit: f64) {
        self.inner()
            .destination
            .failed(now, error.retry_delay(), unit);
    }

    /// Returns whether it was paused before.
    pub(super) fn destination_answered(&self) -> bool {
        let was_open = self.inner().destination.succeeded();
        if was_open {
            self.changed.notify();
        }
        was_open
    }

    /// It can be reached, though nothing was sent. Returns whether it was paused before.
    pub(super) fn destination_reachable(&self) -> bool {
        let was_open = self.inner().destination.reachable();
        if was_open {
            self.changed.notify();
        }
        was_open
    }

    pub(super) fn probe_returned(&self, now: Instant) {
        self.inner().destination.probe_returned(now);
        self.changed.notify();
    }

    pub(super) fn topic(&self, topic: &str, now: Instant) -> TopicGate {
        let mut inner = self.inner();
        let Some((breaker, note)) = inner.topics.get_mut(topic) else {
            return TopicGate::Closed;
        };
        match breaker.gate(now) {
            Gate::Closed => TopicGate::Closed,
            Gate::Probe => TopicGate::Probe,
            // While a probe is under way the events are put off as well, in the store, where its
            // answer does not reach them: not for the probe's time limit.
            Gate::Open(until) => TopicGate::Open((until - now).min(breaker.pause()), note.clone()),
        }
    }

    /// Returns how long the topic's events wait.
    pub(super) fn topic_failed(
        &self,
        topic: &str,
        now: Instant,
        error: &Error,
        unit: f64,
    ) -> Duration {
        let mut inner = self.inner();
        if inner.topics.len() >= TOPICS_MAX && !inner.topics.contains_key(topic) {
            return self.policy.cap;
        }
        let (breaker, note) = inner
            .topics
            .entry(topic.to_owned())
            .or_insert_with(|| (Breaker::new(self.policy.clone()), FailureNote::default()));
        *note = FailureNote::from_error(error);
        breaker.failed(now, error.retry_delay(), unit)
    }

    pub(super) fn topic_delivered(&self, topic: &str) {
        let mut inner = self.inner();
        if !inner.topics.is_empty() {
            inner.topics.remove(topic);
        }
    }

    /// The probe of a topic was not sent after all: the next event gets it.
    pub(super) fn topic_probe_returned(&self, topic: &str, now: Instant) {
        if let Some((breaker, _)) = self.inner().topics.get_mut(topic) {
            breaker.probe_returned(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Two lanes: one has the probe, the other one's events must not wait for a probe's time limit.
    #[tokio::test(start_paused = true)]
    async fn i7_events_beside_a_topics_probe_wait_no_longer_than_its_pause() {
        let policy = BreakerPolicy::default();
        let gates = Gates::new(&policy);
        let now = Instant::now();
        let error = Error::new(ErrorKind::WrongTopicType, "publish", "no stream");
        let pause = gates.topic_failed("t", now, &error, 0.5);
        let later = now + pause;
        assert_eq!(gates.topic("t", later), TopicGate::Probe);
        let TopicGate::Open(wait, _) = gates.topic("t", later) else {
            panic!("one probe at a time");
        };
        assert_eq!(wait, pause);
        gates.topic_delivered("t");
        assert_eq!(gates.topic("t", later), TopicGate::Closed);
    }
}
