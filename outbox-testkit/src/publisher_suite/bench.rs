//! What the tests of the suite share.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use futures::FutureExt as _;
use outbox_core::{
    Event, EventBuilder, OrderClass, Outcome, Position, Publisher, Scope, StoredEvent,
};
use time::OffsetDateTime;

use super::harness::{PublisherGates, PublisherHarness, Received};
use crate::{proxy::FaultProxy, wait::eventually};

/// The deadline of a call in tests where it must not matter.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// The deadline of a call in tests that wait for its end.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);
/// By how much a call may overrun its deadline on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(3);
/// How long a recovery may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One test's view of the harness. Made by the macros.
pub struct PublisherBench {
    harness: Box<dyn PublisherHarness>,
}

/// Runs one test and cleans up whatever became of it.
#[doc(hidden)]
pub async fn run(
    harness: impl PublisherHarness + 'static,
    test: impl AsyncFnOnce(&PublisherBench),
) {
    let bench = PublisherBench {
        harness: Box::new(harness),
    };
    let result = AssertUnwindSafe(test(&bench)).catch_unwind().await;
    bench.harness.destroy().await;
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

impl PublisherBench {
    pub(crate) fn gates(&self) -> PublisherGates {
        self.harness.gates()
    }

    pub(crate) fn harness(&self) -> &dyn PublisherHarness {
        &*self.harness
    }

    /// A publisher straight to the broker.
    pub(crate) async fn publisher(&self) -> Box<dyn Publisher> {
        self.harness.publisher(None, LONG).await
    }

    /// A proxy before the broker with a publisher through it; `None` where none can be put.
    pub(crate) async fn proxied(
        &self,
        deadline: Duration,
    ) -> Option<(FaultProxy, Box<dyn Publisher>)> {
        let broker = self.harness.broker();
        assert_eq!(
            broker.is_some(),
            self.gates().proxy,
            "the gate and the harness differ"
        );
        let proxy = FaultProxy::start(broker?).await.expect("a free port");
        let publisher = self
            .harness
            .publisher(Some(proxy.address()), deadline)
            .await;
        Some((proxy, publisher))
    }

    pub(crate) async fn topic(&self) -> String {
        self.harness.topic().await
    }

    /// The refusing topic, its gate asserted.
    pub(crate) async fn refusing_topic(&self) -> Option<String> {
        let topic = self.harness.refusing_topic().await;
        assert_eq!(
            topic.is_some(),
            self.gates().refusing_topic,
            "the gate and the harness differ"
        );
        topic
    }

    /// Reads the topic until so many messages are there, then all of them.
    pub(crate) async fn consume(&self, topic: &str, at_least: usize) -> Vec<Received> {
        let consumed = eventually(PATIENCE, async || {
            let received = self.harness.consume(topic).await;
            (received.len() >= at_least).then_some(received)
        });
        match consumed.await {
            Some(received) => received,
            None => self.harness.consume(topic).await,
        }
    }
}

/// An event as a store would hand it out.
pub(crate) fn stored(index: usize, builder: EventBuilder, payload: Option<&[u8]>) -> StoredEvent {
    let built = match payload {
        Some(payload) => builder.bytes(payload.to_vec()),
        None => builder.tombstone(),
    };
    let position = Position(i64::try_from(index).expect("few events") + 1);
    // Whole seconds: all that some wires keep.
    let now = OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .expect("zero is valid");
    StoredEvent::from_event(&built.expect("a valid event"), position, now)
}

/// So many events for the topic, all of one key.
pub(crate) fn of_one_key(topic: &str, count: usize) -> Vec<StoredEvent> {
    (0..count)
        .map(|n| {
            let builder = Event::new(topic, "Tested").key("one key");
            stored(n, builder, Some(format!("payload-{n}").as_bytes()))
        })
        .collect()
}

/// Publishes once and checks what is true of every answer: as many outcomes as events.
pub(crate) async fn publish(publisher: &dyn Publisher, events: &[StoredEvent]) -> Vec<Outcome> {
    let outcomes = publisher.publish(events).await;
    assert_eq!(outcomes.len(), events.len(), "one outcome for each event");
    outcomes
}

/// Publishes as the publisher's order class allows for events of one key: whole or one by one.
pub(crate) async fn publish_key(publisher: &dyn Publisher, events: &[StoredEvent]) -> Vec<Outcome> {
    let at_once = match publisher.capabilities().order {
        OrderClass::InFlight => events.len().max(1),
        OrderClass::None => 1,
    };
    let mut outcomes = Vec::new();
    for part in events.chunks(at_once) {
        let answered = publish(publisher, part).await;
        let failed = !answered.iter().all(Outcome::is_delivered);
        outcomes.extend(answered);
        if failed {
            break;
        }
    }
    outcomes
}

#[track_caller]
pub(crate) fn assert_delivered(outcomes: &[Outcome]) {
    for (index, outcome) in outcomes.iter().enumerate() {
        assert!(outcome.is_delivered(), "event {index}: {outcome:?}");
    }
}

/// None delivered, and all of it the destination's fault: no event may pay for it.
#[track_caller]
pub(crate) fn assert_destination_failed(outcomes: &[Outcome]) {
    for (index, outcome) in outcomes.iter().enumerate() {
        let scope = outcome.error().map(outbox_core::Error::failure_scope);
        assert!(
            matches!(outcome, Outcome::Failed(_) | Outcome::Unknown(_))
                && scope == Some(Scope::Destination),
            "event {index}: {outcome:?}"
        );
    }
}

/// Publishes until all is delivered. As the relay does, it goes on behind the delivered beginning:
/// what was delivered behind a failed event goes out again after it, with the same ids.
pub(crate) async fn publish_until_delivered(publisher: &dyn Publisher, events: &[StoredEvent]) {
    let mut done = 0;
    let all = eventually(PATIENCE, async || {
        let outcomes = publish_key(publisher, &events[done..]).await;
        done += outcomes
            .iter()
            .take_while(|outcome| outcome.is_delivered())
            .count();
        (done == events.len()).then_some(())
    });
    let recovered = all.await.is_some();
    assert!(
        recovered,
        "{done} of {} delivered within {PATIENCE:?}",
        events.len()
    );
}

/// What arrived is what was sent (I4, I10).
#[track_caller]
pub(crate) fn assert_same(sent: &StoredEvent, received: &Received, gates: PublisherGates) {
    let headers = if gates.exact_headers {
        sent.headers.clone()
    } else {
        received.headers.clone()
    };
    let age = (sent.created_at - received.created_at).abs();
    assert!(
        age < time::Duration::seconds(1),
        "created at {}",
        received.created_at
    );
    let expected = Received {
        id: sent.id,
        key: sent.key.clone(),
        payload: sent.payload.clone(),
        event_type: sent.event_type.clone(),
        event_version: sent.event_version,
        aggregate_type: sent.aggregate_type.clone(),
        aggregate_id: sent.aggregate_id.clone(),
        content_type: sent.content_type.clone(),
        headers,
        created_at: received.created_at,
    };
    assert_eq!(*received, expected);
    for (name, value) in sent
        .headers
        .iter()
        .filter(|(_, value)| std::str::from_utf8(value).is_ok())
    {
        let first = sent.headers.get(name) == Some(value);
        assert!(
            !first || received.headers.get(name) == Some(value),
            "header {name}"
        );
    }
}
