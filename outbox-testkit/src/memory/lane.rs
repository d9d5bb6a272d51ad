//! A lane as its owner sees it: every call is fenced by the epoch at which it was acquired.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Batch, BatchSource, BatchToken, ClaimLimit, Lane, LaneId, Result, Settled, Settlement,
};

use super::{clock::wall, lane_state::Taken, store::MemoryStore};

pub(super) struct MemoryLane {
    store: MemoryStore,
    route: String,
    index: usize,
    id: LaneId,
    epoch: u64,
}

impl MemoryLane {
    pub(super) fn id_of(index: usize) -> LaneId {
        LaneId(index.to_string())
    }

    pub(super) fn new(store: MemoryStore, route: &str, index: usize, epoch: u64) -> Self {
        Self {
            store,
            route: route.to_owned(),
            index,
            id: Self::id_of(index),
            epoch,
        }
    }
}

#[async_trait]
impl Lane for MemoryLane {
    fn id(&self) -> &LaneId {
        &self.id
    }

    fn lease(&self) -> Duration {
        self.store.lease()
    }

    async fn blocked(&self) -> Result<Vec<String>> {
        let mut state = self.store.lock();
        let lane = state.owned(&self.route, self.index, self.epoch)?.lane;
        Ok(lane.parked.keys().cloned().collect())
    }

    async fn claim(&self, limit: ClaimLimit) -> Result<Batch> {
        let now = self.store.now();
        let lease_end = now.saturating_add(self.store.lease());
        let mut state = self.store.lock();
        let token = state.token();
        let owned = state.owned(&self.route, self.index, self.epoch)?;
        let lane = owned.lane;
        lane.drop_expired(now);
        lane.lease_end = lane.lease_end.max(lease_end);
        let claimed = lane.claim(owned.log, owned.topics, now, limit);
        if let Some(claimed) = &claimed {
            lane.launch(claimed, token, lease_end);
        }
        Ok(batch(token, claimed, now))
    }

    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled> {
        let now = self.store.now();
        let mut state = self.store.lock();
        let lane = state.owned(&self.route, self.index, self.epoch)?.lane;
        lane.settle(now, token, settlements)
    }

    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>> {
        let lease_end = self.store.now().saturating_add(self.store.lease());
        let mut state = self.store.lock();
        let lane = state.owned(&self.route, self.index, self.epoch)?.lane;
        lane.lease_end = lane.lease_end.max(lease_end);
        let mut lost = Vec::new();
        for token in tokens {
            match lane
                .flights
                .iter_mut()
                .find(|flight| flight.token == *token)
            {
                Some(flight) => flight.lease_end = lease_end,
                None => lost.push(*token),
            }
        }
        Ok(lost)
    }

    async fn release(&self) -> Result<()> {
        let mut state = self.store.lock();
        // A lane that another worker has is released already.
        if let Ok(owned) = state.owned(&self.route, self.index, self.epoch) {
            let worker = owned.lane.owner.clone();
            owned.lane.give_back();
            state.forget_idle(&self.route, worker);
        }
        drop(state);
        self.store.ring();
        Ok(())
    }
}

fn batch(token: BatchToken, claimed: Option<Taken>, now: Duration) -> Batch {
    let mut batch = Batch {
        token,
        source: BatchSource::default(),
        events: Vec::new(),
        unreadable: Vec::new(),
        claimed_at: wall(now),
        more: false,
    };
    if let Some(claimed) = claimed {
        batch.source = claimed.source;
        batch.more = claimed.more;
        for (row, counters) in claimed.rows {
            match row.read(counters) {
                Ok(event) => batch.events.push(event),
                Err(unreadable) => batch.unreadable.push(unreadable),
            }
        }
    }
    batch.events.sort_by_key(|event| event.position);
    batch
        .unreadable
        .sort_by_key(|row: &outbox_core::Unreadable| row.position);
    batch
}
