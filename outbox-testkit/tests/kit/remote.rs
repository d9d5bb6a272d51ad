//! A handle that is reached through a pipe passes the suites like the store behind it; nothing of a
//! call or of its answer gets lost on the way.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{
    AcquireRequest, ErrorKind, Inspect as _, OutboxStore, Store as _, TopicSet, WorkerId,
};
use outbox_testkit::{
    faulty::{FaultyStore, StoreCall, StoreFault},
    memory::{MemoryHarness, MemoryStore},
    remote::{RemoteStore, serve},
    store_suite::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer},
};
use tokio::{
    io::duplex,
    time::{sleep, timeout},
};

/// A handle whose calls go through a pipe to this one.
async fn through_a_pipe(store: Arc<dyn OutboxStore>) -> RemoteStore {
    let (calls, callers) = duplex(4096);
    let (answers, answerer) = duplex(4096);
    tokio::spawn(async move {
        // Who asks is gone when it fails.
        let _ = serve(store, callers, answerer).await;
    });
    RemoteStore::over(answers, calls).await
}

struct PipedHarness;

struct PipedOutbox(Arc<dyn Outbox>);

#[async_trait]
impl StoreHarness for PipedHarness {
    fn gates(&self) -> StoreGates {
        MemoryHarness.gates()
    }

    async fn fresh(&self, options: StoreOptions) -> Arc<dyn Outbox> {
        Arc::new(PipedOutbox(MemoryHarness.fresh(options).await))
    }
}

#[async_trait]
impl Outbox for PipedOutbox {
    async fn open(&self) -> Arc<dyn OutboxStore> {
        Arc::new(through_a_pipe(self.0.open().await).await)
    }

    async fn begin(&self) -> Box<dyn Writer> {
        self.0.begin().await
    }

    async fn insert_unreadable(&self) -> bool {
        self.0.insert_unreadable().await
    }
}

mod store {
    outbox_testkit::store_suite!(super::PipedHarness);
}

mod ordered {
    outbox_testkit::ordered_suite!(super::PipedHarness);
}

/// A call that takes long holds up no other, and when its caller drops it, it changes nothing any more.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_dropped_at_the_other_end() {
    const LONG: Duration = Duration::from_secs(3600);
    let store = MemoryStore::default();
    let faulty = FaultyStore::new(Arc::new(store.clone()));
    let slow = StoreFault::Slow(LONG);
    faulty.script().next(StoreCall::Acquire, [slow]);
    let remote = through_a_pipe(Arc::new(faulty)).await;
    let request = AcquireRequest {
        route: "r",
        topics: &TopicSet::all(),
        worker: &WorkerId("dropped".to_owned()),
        held: &[],
    };
    let mut acquiring = Box::pin(remote.acquire(&request));
    assert!(timeout(LONG / 2, &mut acquiring).await.is_err());
    remote.check().await.unwrap();
    drop(acquiring);
    sleep(LONG).await;
    let lanes = store.inspect(1).await.unwrap().lanes;
    assert!(lanes.iter().all(|lane| lane.owner.is_none()), "{lanes:?}");
}

#[tokio::test]
async fn an_error_of_the_store_arrives_as_it_is() {
    let faulty = FaultyStore::new(Arc::new(MemoryStore::default()));
    let fault = StoreFault::Fail(ErrorKind::ReadOnly);
    faulty.script().next(StoreCall::Check, [fault, fault]);
    let here = faulty.check().await.unwrap_err();
    let remote = through_a_pipe(Arc::new(faulty)).await;
    let there = remote.check().await.unwrap_err();
    assert_eq!(there.kind(), here.kind());
    assert_eq!(there.to_string(), here.to_string());
}
