//! The scripted faults do what their names say.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    AcquireRequest, Error, ErrorKind, Event, Lane, OutboxStore, Outcome, Position, Publisher,
    Scope, Settlement, Store as _, StoredEvent, TopicSet, Verdict, WorkerId,
};
use outbox_testkit::{
    faulty::{
        FaultyPublisher, FaultyStore, PublishFault, RecordingPublisher, StoreCall, StoreFault,
    },
    memory::{MemoryOptions, MemoryStore},
};
use tokio::time::{Instant, timeout};

fn events(count: usize) -> Vec<StoredEvent> {
    (0..count)
        .map(|n| {
            let event = Event::new("t", "T").bytes(n.to_string()).unwrap();
            let position = Position(i64::try_from(n).unwrap());
            StoredEvent::from_event(&event, position, time::OffsetDateTime::UNIX_EPOCH)
        })
        .collect()
}

fn faulty() -> (Arc<RecordingPublisher>, FaultyPublisher) {
    let broker = Arc::new(RecordingPublisher::default());
    (Arc::clone(&broker), FaultyPublisher::new(broker))
}

fn names(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes.iter().map(Outcome::as_str).collect()
}

#[tokio::test]
async fn a_publisher_fails_as_scripted() {
    let (broker, publisher) = faulty();
    let kind = ErrorKind::ConnectionLost;
    let cases: [(PublishFault, &[&str], usize); 6] = [
        (PublishFault::Fail(kind), &["failed"; 3], 0),
        (PublishFault::LandThenFail(kind), &["unknown"; 3], 3),
        (PublishFault::LandSome(2, kind), &["unknown"; 3], 2),
        (
            PublishFault::RejectNth(1, ErrorKind::Refused),
            &["delivered", "rejected", "delivered"],
            2,
        ),
        (
            PublishFault::RejectNth(9, ErrorKind::Refused),
            &["delivered"; 3],
            3,
        ),
        (PublishFault::WrongCount, &["delivered"; 2], 3),
    ];
    publisher
        .script()
        .next((), cases.iter().map(|(fault, ..)| *fault));
    for (fault, outcomes, landed) in cases {
        let before = broker.len();
        assert_eq!(
            names(&publisher.publish(&events(3)).await),
            outcomes,
            "{fault:?}"
        );
        assert_eq!(broker.len() - before, landed, "{fault:?}");
    }
    assert_eq!(
        names(&publisher.publish(&events(1)).await),
        ["delivered"],
        "the script is over"
    );
    assert_eq!(publisher.script().count(()), 7);
    assert_eq!(publisher.answered("unknown"), 6);
    assert_eq!(publisher.answered("rejected"), 1);
}

#[tokio::test]
async fn a_rejection_is_in_message_scope_and_an_outage_in_the_destinations() {
    let (_, publisher) = faulty();
    let faults = [
        PublishFault::RejectNth(0, ErrorKind::TopicNotFound),
        PublishFault::Fail(ErrorKind::Unavailable),
    ];
    publisher.script().next((), faults);
    for scope in [Scope::Message, Scope::Destination] {
        let outcomes = publisher.publish(&events(1)).await;
        assert_eq!(outcomes[0].error().unwrap().failure_scope(), scope);
    }
}

#[tokio::test]
async fn a_rule_answers_for_single_events() {
    let (broker, publisher) = faulty();
    publisher.on_event(|event| {
        let bad = event.payload.as_deref() == Some(b"1");
        bad.then(|| Outcome::Failed(Error::new(ErrorKind::Refused, "publish", "no")))
    });
    let outcomes = publisher.publish(&events(3)).await;
    assert_eq!(names(&outcomes), ["delivered", "failed", "delivered"]);
    assert_eq!(broker.events().len(), 2);
    publisher.clear_events();
    publisher.publish(&events(3)).await;
    assert_eq!((broker.len(), broker.calls()), (5, 2));
    assert!(!broker.is_empty());
    let deliveries = broker.deliveries();
    assert_eq!((deliveries[1].call, deliveries[2].call), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_publisher_hangs_is_slow_or_panics() {
    let (broker, publisher) = faulty();
    let second = Duration::from_secs(1);
    let faults = [
        PublishFault::Hang,
        PublishFault::Slow(second),
        PublishFault::SlowAnswer(second),
        PublishFault::Panic,
    ];
    publisher.script().next((), faults);
    let batch = events(1);
    assert!(
        timeout(second * 100, publisher.publish(&batch))
            .await
            .is_err()
    );
    assert_eq!(broker.len(), 0);
    let started = Instant::now();
    publisher.publish(&batch).await;
    assert_eq!(started.elapsed(), second);
    assert_eq!(broker.deliveries()[0].at - started, second);
    publisher.publish(&batch).await;
    assert_eq!(
        broker.deliveries()[1].at - started,
        second,
        "sent at once, answered late"
    );
    assert_eq!(started.elapsed(), second * 2);
    let publisher = Arc::new(publisher);
    let panicking = Arc::clone(&publisher);
    let panicked = tokio::spawn(async move { panicking.publish(&batch).await }).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(
        names(&publisher.publish(&events(1)).await),
        ["delivered"],
        "usable after a panic"
    );
}

/// A store with one lane and one event, all calls scriptable.
async fn faulty_store() -> (MemoryStore, FaultyStore, Arc<dyn Lane>) {
    let memory = MemoryStore::new(MemoryOptions {
        lanes: 1,
        ..MemoryOptions::default()
    });
    let mut tx = memory.begin();
    tx.enqueue(&Event::new("t", "T").key("k").bytes("x").unwrap());
    tx.commit();
    let store = FaultyStore::new(Arc::new(memory.clone()));
    let lane = acquire(&store).await.unwrap().remove(0);
    (memory, store, lane)
}

async fn acquire(store: &FaultyStore) -> outbox_core::Result<Vec<Arc<dyn Lane>>> {
    let (topics, worker) = (TopicSet::all(), WorkerId("relay".to_owned()));
    let request = AcquireRequest {
        route: "r",
        topics: &topics,
        worker: &worker,
        held: &[],
    };
    Ok(store.acquire(&request).await?.lanes)
}

const LIMIT: outbox_core::ClaimLimit = outbox_core::ClaimLimit {
    events: 10,
    bytes: 1_000_000,
};

#[tokio::test]
async fn a_store_fails_the_nth_call_and_changes_nothing() {
    let (_, store, lane) = faulty_store().await;
    store.script().nth(
        StoreCall::Claim,
        2,
        StoreFault::Fail(ErrorKind::Unavailable),
    );
    store.script().nth(
        StoreCall::Settle,
        1,
        StoreFault::Fail(ErrorKind::ConnectionLost),
    );
    let batch = lane.claim(LIMIT).await.unwrap();
    assert_eq!(
        lane.claim(LIMIT).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let done = [Settlement {
        position: batch.events[0].position,
        verdict: Verdict::Done,
    }];
    assert_eq!(
        lane.settle(batch.token, &done).await.unwrap_err().kind(),
        ErrorKind::ConnectionLost
    );
    assert_eq!(store.inspect_in_flight().await, 1);
    assert_eq!(lane.settle(batch.token, &done).await.unwrap().applied, 1);
    assert_eq!(store.inspect_in_flight().await, 0);
    assert_eq!(store.script().count(StoreCall::Settle), 2);
    assert_eq!(store.script().count(StoreCall::Acquire), 1);
}

#[tokio::test]
async fn a_settle_is_applied_and_its_answer_lost() {
    let (_, store, lane) = faulty_store().await;
    let batch = lane.claim(LIMIT).await.unwrap();
    store.script().next(
        StoreCall::Settle,
        [StoreFault::LoseAnswer(ErrorKind::ConnectionLost)],
    );
    let done = [Settlement {
        position: batch.events[0].position,
        verdict: Verdict::Done,
    }];
    lane.settle(batch.token, &done).await.unwrap_err();
    assert_eq!(store.inspect_in_flight().await, 0, "it was written");
    assert_eq!(
        lane.settle(batch.token, &done).await.unwrap().applied,
        1,
        "answered as before"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_is_slow_hangs_and_follows_a_rule() {
    let (_, store, lane) = faulty_store().await;
    let second = Duration::from_secs(1);
    store.script().next(
        StoreCall::Renew,
        [
            StoreFault::Slow(second),
            StoreFault::SlowAnswer(second),
            StoreFault::Hang,
        ],
    );
    for _ in 0..2 {
        let started = Instant::now();
        lane.renew(&[]).await.unwrap();
        assert_eq!(started.elapsed(), second);
    }
    assert!(timeout(second * 100, lane.renew(&[])).await.is_err());
    store.script().rule(|call, number| {
        (*call == StoreCall::Blocked && number % 2 == 0)
            .then_some(StoreFault::Fail(ErrorKind::Timeout))
    });
    assert!(lane.blocked().await.is_ok());
    assert!(lane.blocked().await.is_err());
    assert!(lane.blocked().await.is_ok());
    store.script().clear();
    assert!(lane.blocked().await.is_ok());
    store.script().next(StoreCall::Check, [StoreFault::Panic]);
    let panicking = store.clone();
    let panicked = tokio::spawn(async move { panicking.check().await }).await;
    assert!(panicked.unwrap_err().is_panic());
    store.check().await.unwrap();
    lane.release().await.unwrap();
    store.script().next(
        StoreCall::Acquire,
        [StoreFault::Fail(ErrorKind::Unavailable)],
    );
    assert!(acquire(&store).await.is_err());
    assert_eq!(acquire(&store).await.unwrap().len(), 1);
}

trait InFlight {
    async fn inspect_in_flight(&self) -> u64;
}

impl<T: OutboxStore> InFlight for T {
    async fn inspect_in_flight(&self) -> u64 {
        self.inspect(10).await.unwrap().in_flight.value
    }
}

mod wrapped {
    //! A wrapper without faults passes the suites: it hides nothing of the store below.

    use std::sync::Arc;

    use async_trait::async_trait;
    use outbox_core::OutboxStore;
    use outbox_testkit::{
        faulty::FaultyStore,
        memory::MemoryHarness,
        store_suite::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer},
    };

    struct Wrapped;

    struct WrappedOutbox(Arc<dyn Outbox>);

    #[async_trait]
    impl StoreHarness for Wrapped {
        fn gates(&self) -> StoreGates {
            MemoryHarness.gates()
        }

        async fn fresh(&self, options: StoreOptions) -> Arc<dyn Outbox> {
            Arc::new(WrappedOutbox(MemoryHarness.fresh(options).await))
        }
    }

    #[async_trait]
    impl Outbox for WrappedOutbox {
        async fn open(&self) -> Arc<dyn OutboxStore> {
            Arc::new(FaultyStore::new(self.0.open().await))
        }

        async fn begin(&self) -> Box<dyn Writer> {
            self.0.begin().await
        }

        async fn insert_unreadable(&self) -> bool {
            self.0.insert_unreadable().await
        }
    }

    mod store {
        outbox_testkit::store_suite!(super::Wrapped);
    }

    mod ordered {
        outbox_testkit::ordered_suite!(super::Wrapped);
    }
}
