//! The store as the engine sees it.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{AcquireRequest, Acquired, Lane, LaneId, Migrated, Result, Store};
use tokio::sync::Notify;
use uuid::Uuid;

use super::{
    clock::Clock, dedup::DedupKeys, lane::MemoryLane, mutation::Mutation, row::Body, state::State,
    transaction::MemoryTx,
};

/// How the store is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Lanes of each route. Default 4: enough for balancing to show.
    pub lanes: usize,
    /// How long a claim stays a worker's without a renewal. Default 30 s.
    pub lease: Duration,
    /// Unblock a key as soon as nothing of it is parked, as the contract allows, although claims of it
    /// that are in flight may park something yet. Default: no, as the other stores do.
    pub lax: bool,
    /// How the store is broken. Default: not at all.
    pub mutation: Option<Mutation>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            lanes: 4,
            lease: Duration::from_secs(30),
            lax: false,
            mutation: None,
        }
    }
}

/// An ordered store in memory. A clone is another handle to the same outbox, as another process
/// would have; what tells relays apart is their worker id alone.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    clock: Clock,
    lease: Duration,
    bell: Notify,
    dedup: DedupKeys,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("lease", &self.0.lease)
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store. Its clock starts now.
    pub fn new(options: MemoryOptions) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(&options)),
            clock: Clock::start(),
            lease: options.lease,
            bell: Notify::new(),
            dedup: DedupKeys::default(),
        }))
    }

    /// Sets the store's clock forward or back, as a server's administrator may.
    pub fn step_clock(&self, forward: bool, by: Duration) {
        self.0.clock.step(forward, by);
    }

    /// What the store's clock shows; the day before it was made is zero.
    pub fn clock(&self) -> Duration {
        self.now()
    }

    /// Opens a transaction. Dropped without a commit it is rolled back.
    pub fn begin(&self) -> MemoryTx {
        MemoryTx::new(self.clone())
    }

    /// Commits a row that is no event, as a foreign writer could make it.
    pub fn insert_unreadable(&self, id: Uuid, topic: &str, key: Option<&str>, why: &str) {
        let body = Body::Unreadable {
            id,
            topic: topic.to_owned(),
            key: key.map(ToOwned::to_owned),
            why: why.to_owned(),
        };
        self.commit(vec![(body, self.now())]);
    }

    pub(super) fn mutated(&self, mutation: Mutation) -> bool {
        self.lock().mutation == Some(mutation)
    }

    pub(super) fn commit(&self, rows: Vec<(Body, Duration)>) {
        self.lock().commit(rows);
        self.ring();
    }

    pub(super) async fn take_key(&self, key: &str) -> bool {
        self.0.dedup.take(key).await
    }

    pub(super) fn end_keys(&self, keys: Vec<String>, committed: bool) {
        self.0.dedup.end(keys, committed.then(|| self.now()));
    }

    /// Forgets dedup keys, as [`DedupKeys::forget`] says.
    pub(super) fn forget_keys(&self, until: Duration, keys_max: usize) -> (usize, bool) {
        self.0.dedup.forget(until, keys_max)
    }

    /// How many dedup keys that would forget without a bound.
    pub(super) fn old_keys(&self, until: Duration) -> usize {
        self.0.dedup.old(until)
    }

    /// Wakes every waiting relay, and the next one to wait should none be waiting yet.
    pub(super) fn ring(&self) {
        self.0.bell.notify_waiters();
        self.0.bell.notify_one();
    }

    pub(super) fn now(&self) -> Duration {
        self.0.clock.now()
    }

    pub(super) fn lease(&self) -> Duration {
        self.0.lease
    }

    /// No call awaits under the lock, and none leaves a change half done when it panics.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn ordered(&self) -> bool {
        true
    }

    async fn migrate(&self) -> Result<Migrated> {
        let mut state = self.lock();
        let from = i32::from(std::mem::replace(&mut state.migrated, true));
        Ok(Migrated {
            from,
            to: 1,
            also: None,
        })
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired> {
        let (now, lease) = (self.now(), self.lease());
        let mut state = self.lock();
        let taken_away = state.mutation == Some(Mutation::LeaseIgnored);
        let route = state.route(request.route, request.topics);
        route.asked.insert(request.worker.clone(), now);
        let share = route.share(request.worker, now, lease);

        let mut owned = Vec::new();
        for (index, lane) in route.lanes.iter_mut().enumerate() {
            let id = MemoryLane::id_of(index);
            if lane.owner.as_ref() == Some(request.worker) && request.held.contains(&id) {
                lane.lease_end = now.saturating_add(lease);
                owned.push(id);
            }
        }
        let mut acquired = Acquired::default();
        let mut count = owned.len();
        for (index, lane) in route.lanes.iter_mut().enumerate() {
            let id = MemoryLane::id_of(index);
            // One that this worker has and does not hold was given up, or given to a call whose answer
            // was lost: nobody works it.
            let given_up = lane.owner.as_ref() == Some(request.worker);
            let free = given_up || lane.is_free(now) || taken_away;
            if count >= share || request.held.contains(&id) || !free {
                continue;
            }
            if given_up {
                lane.give_back();
            }
            lane.take_over(request.worker.clone(), now.saturating_add(lease));
            let taken = MemoryLane::new(self.clone(), request.route, index, lane.epoch);
            acquired.lanes.push(Arc::new(taken) as Arc<dyn Lane>);
            count += 1;
        }
        acquired.surrender = surrendered(owned, share);
        Ok(acquired)
    }

    async fn wait(&self, timeout: Duration) {
        // The timeout is an answer too: polling is the bound.
        let _ = tokio::time::timeout(timeout, self.0.bell.notified()).await;
    }
}

/// What a worker with more than its share gives back: the last ones.
fn surrendered(mut owned: Vec<LaneId>, share: usize) -> Vec<LaneId> {
    owned.split_off(share.min(owned.len()))
}
