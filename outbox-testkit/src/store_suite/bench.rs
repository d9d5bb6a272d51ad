//! What the tests of a suite share: fresh outboxes that are removed afterwards, events, workers.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt as _;
use outbox_core::{
    AcquireRequest, Batch, ClaimLimit, Event, FailureNote, Lane, LaneId, OutboxStore, Position,
    Settled, Settlement, StoredEvent, TopicSet, Verdict, WorkerId,
};

use super::harness::{Outbox, StoreGates, StoreHarness, StoreOptions};
use crate::wait::eventually;

/// The lease of tests in which none may end by itself, however slow the machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The lease of tests that wait for its end.
pub(crate) const SHORT: Duration = Duration::from_millis(400);
/// How long what must happen may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The route of all tests.
pub(crate) const ROUTE: &str = "suite";

/// One test's view of the harness. Made by the macros.
pub struct StoreBench {
    harness: Box<dyn StoreHarness>,
    outboxes: Mutex<Vec<Arc<dyn Outbox>>>,
}

/// Runs one test and removes its outboxes whatever became of it.
#[doc(hidden)]
pub async fn run(harness: impl StoreHarness + 'static, test: impl AsyncFnOnce(&StoreBench)) {
    let bench = StoreBench {
        harness: Box::new(harness),
        outboxes: Mutex::default(),
    };
    let result = AssertUnwindSafe(test(&bench)).catch_unwind().await;
    let outboxes = std::mem::take(&mut *bench.lock());
    for outbox in outboxes {
        outbox.destroy().await;
    }
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

impl StoreBench {
    pub(crate) fn gates(&self) -> StoreGates {
        self.harness.gates()
    }

    /// A fresh outbox with this lease and number of lanes.
    pub(crate) async fn fresh(&self, lease: Duration, lanes: usize) -> Arc<dyn Outbox> {
        let outbox = self.harness.fresh(StoreOptions { lease, lanes }).await;
        self.lock().push(Arc::clone(&outbox));
        outbox
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Outbox>>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commits these events in one transaction.
pub(crate) async fn commit(outbox: &dyn Outbox, events: &[Event]) {
    let mut writer = outbox.begin().await;
    writer.enqueue(events).await;
    writer.commit().await;
}

/// An event of topic `t` with this key; the payload tells it apart.
pub(crate) fn event(key: &str, payload: &str) -> Event {
    Event::new("t", "Tested")
        .key(key)
        .bytes(payload.to_owned())
        .expect("a valid event")
}

/// So many events, each with a key of its own.
pub(crate) fn events(count: usize) -> Vec<Event> {
    (0..count)
        .map(|n| event(&format!("key-{n}"), &format!("payload-{n}")))
        .collect()
}

/// The payload as text, to compare by.
pub(crate) fn text(event: &StoredEvent) -> String {
    String::from_utf8_lossy(event.payload.as_deref().unwrap_or_default()).into_owned()
}

pub(crate) fn texts(events: &[StoredEvent]) -> Vec<String> {
    events.iter().map(text).collect()
}

pub(crate) fn note(text: &str) -> FailureNote {
    FailureNote::new(Some(outbox_core::ErrorKind::Refused), text)
}

pub(crate) fn retry(after: Duration) -> Verdict {
    Verdict::Retry {
        after,
        note: note("try again"),
    }
}

pub(crate) fn dead(reason: outbox_core::DeadReason, why: &str, hold_key: bool) -> Verdict {
    Verdict::Dead {
        reason,
        note: note(why),
        hold_key,
    }
}

/// Every row of the batch, unreadable ones included.
pub(crate) fn positions(batch: &Batch) -> Vec<Position> {
    let unreadable = batch.unreadable.iter().map(|row| row.position);
    let mut all: Vec<Position> = batch
        .events
        .iter()
        .map(|e| e.position)
        .chain(unreadable)
        .collect();
    all.sort();
    all
}

/// The same verdict for the whole batch.
pub(crate) fn all(batch: &Batch, verdict: &Verdict) -> Vec<Settlement> {
    let settle = |position| Settlement {
        position,
        verdict: verdict.clone(),
    };
    positions(batch).into_iter().map(settle).collect()
}

/// A verdict for each event, in the batch's order.
pub(crate) fn each(
    batch: &Batch,
    mut verdict: impl FnMut(&StoredEvent) -> Verdict,
) -> Vec<Settlement> {
    let settle = |event: &StoredEvent| Settlement {
        position: event.position,
        verdict: verdict(event),
    };
    batch.events.iter().map(settle).collect()
}

pub(crate) const fn limit(events: usize) -> ClaimLimit {
    ClaimLimit {
        events,
        bytes: 16 * 1024 * 1024,
    }
}

/// A relay without an engine: a handle, a name and its lanes.
pub(crate) struct Worker {
    pub(crate) store: Arc<dyn OutboxStore>,
    pub(crate) id: WorkerId,
    pub(crate) lanes: Vec<Arc<dyn Lane>>,
    topics: TopicSet,
}

impl Worker {
    /// Opens a handle; has no lane yet.
    pub(crate) async fn idle(outbox: &dyn Outbox, name: &str) -> Self {
        Self::of_topics(outbox, name, TopicSet::all()).await
    }

    pub(crate) async fn of_topics(outbox: &dyn Outbox, name: &str, topics: TopicSet) -> Self {
        Self {
            store: outbox.open().await,
            id: WorkerId(name.to_owned()),
            lanes: Vec::new(),
            topics,
        }
    }

    /// Opens a handle and waits until it has a lane.
    pub(crate) async fn start(outbox: &dyn Outbox, name: &str) -> Self {
        let mut worker = Self::idle(outbox, name).await;
        worker.get_lane().await;
        worker
    }

    /// Asks once; does not give back what is to be surrendered.
    pub(crate) async fn acquire(&mut self) -> Vec<LaneId> {
        let held: Vec<LaneId> = self.lanes.iter().map(|lane| lane.id().clone()).collect();
        let request = AcquireRequest {
            route: ROUTE,
            topics: &self.topics,
            worker: &self.id,
            held: &held,
        };
        let acquired = self.store.acquire(&request).await.expect("acquire");
        self.lanes.extend(acquired.lanes);
        acquired.surrender
    }

    /// Waits until it has a lane: another worker's may first have to end.
    pub(crate) async fn get_lane(&mut self) {
        let got = eventually(PATIENCE, async || {
            self.acquire().await;
            (!self.lanes.is_empty()).then_some(())
        })
        .await;
        assert!(got.is_some(), "{} got no lane within {PATIENCE:?}", self.id);
    }

    /// Its first lane; the only one where the test asked for one.
    pub(crate) fn lane(&self) -> &dyn Lane {
        &**self.lanes.first().expect("the worker has a lane")
    }

    /// Claims once from the first lane.
    pub(crate) async fn claim(&self, count: usize) -> Batch {
        self.lane().claim(limit(count)).await.expect("claim")
    }

    /// Claims from the first lane until there is something.
    pub(crate) async fn claim_some(&self, count: usize) -> Batch {
        let claimed = eventually(PATIENCE, async || {
            let batch = self.claim(count).await;
            (!batch.is_empty()).then_some(batch)
        });
        claimed.await.expect("events became claimable in time")
    }

    pub(crate) async fn settle(&self, batch: &Batch, settlements: &[Settlement]) -> Settled {
        let settled = self.lane().settle(batch.token, settlements).await;
        settled.expect("settle")
    }

    pub(crate) async fn settle_all(&self, batch: &Batch, verdict: &Verdict) -> Settled {
        self.settle(batch, &all(batch, verdict)).await
    }

    /// Claims and settles as done all that is due in the first lane, until a claim finds nothing.
    pub(crate) async fn drain(&self) -> Vec<StoredEvent> {
        let mut seen = Vec::new();
        loop {
            let batch = self.claim(100).await;
            if batch.is_empty() {
                return seen;
            }
            let settled = self.settle_all(&batch, &Verdict::Done).await;
            assert_eq!(settled.lost, 0, "a batch under a valid lease was lost");
            seen.extend(batch.events);
        }
    }

    /// Drains until so many events were seen in all.
    pub(crate) async fn drain_until(&self, count: usize) -> Vec<StoredEvent> {
        let mut seen = Vec::new();
        let done = eventually(PATIENCE, async || {
            seen.extend(self.drain().await);
            (seen.len() >= count).then_some(())
        });
        let done = done.await;
        assert!(
            done.is_some(),
            "saw {} of {count} events: {:?}",
            seen.len(),
            texts(&seen)
        );
        seen
    }

    /// Nothing is due, now and in a while.
    pub(crate) async fn assert_drained(&self) {
        let batch = self.claim(100).await;
        assert!(
            batch.is_empty(),
            "unexpected events: {:?}",
            texts(&batch.events)
        );
    }
}
