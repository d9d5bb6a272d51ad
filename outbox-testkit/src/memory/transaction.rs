//! Writers' transactions.

use std::{mem, time::Duration};

use outbox_core::{Enqueue, Enqueued, Event, Result};

use super::{mutation::Mutation, row::Body, store::MemoryStore};

/// An open transaction. Nothing of it is seen before [`commit`](Self::commit); dropping it rolls
/// back (I1).
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct MemoryTx {
    store: MemoryStore,
    rows: Vec<(Body, Duration)>,
    /// Dedup keys that are its own until it ends.
    keys: Vec<String>,
}

impl MemoryTx {
    pub(super) fn new(store: MemoryStore) -> Self {
        Self {
            store,
            rows: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Inserts an event without a dedup key; its creation time is now, not the commit's.
    pub fn enqueue(&mut self, event: &Event) {
        assert!(
            event.dedup_key().is_none(),
            "an event with a dedup key may have to wait: use Enqueue"
        );
        self.insert(event);
    }

    fn insert(&mut self, event: &Event) {
        self.rows
            .push((Body::Event(Box::new(event.clone())), self.store.now()));
    }

    /// Makes all of it visible at once, behind everything that was committed before.
    pub fn commit(mut self) {
        self.store.end_keys(mem::take(&mut self.keys), true);
        self.store.commit(mem::take(&mut self.rows));
    }

    /// Forgets all of it.
    pub fn rollback(mut self) {
        if self.store.mutated(Mutation::RollbackCommits) {
            self.store.commit(mem::take(&mut self.rows));
        }
    }

    /// Takes the key, unless it is taken for ever or by this transaction; waits for others that have
    /// it, as a database's unique index does.
    async fn take_key(&mut self, key: &str) -> bool {
        if self.keys.iter().any(|own| own == key) {
            return false;
        }
        let taken = self.store.take_key(key).await;
        if taken {
            self.keys.push(key.to_owned());
        }
        taken
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        self.store.end_keys(mem::take(&mut self.keys), false);
    }
}

impl Enqueue<MemoryTx> for MemoryStore {
    async fn enqueue(&self, conn: &mut MemoryTx, event: &Event) -> Result<Enqueued> {
        if let Some(key) = event.dedup_key()
            && !conn.take_key(key).await
        {
            return Ok(Enqueued::Duplicate);
        }
        conn.insert(event);
        Ok(Enqueued::Written)
    }

    async fn enqueue_all(&self, conn: &mut MemoryTx, events: &[Event]) -> Result<Vec<Enqueued>> {
        let mut keyed: Vec<_> = events
            .iter()
            .enumerate()
            .filter_map(|(index, event)| event.dedup_key().map(|key| (key, index)))
            .collect();
        // In one order, so that two batches can't wait for each other.
        keyed.sort_unstable();
        let mut told = vec![Enqueued::Written; events.len()];
        for (key, index) in keyed {
            if !conn.take_key(key).await {
                told[index] = Enqueued::Duplicate;
            }
        }
        for (event, told) in events.iter().zip(&told) {
            if *told == Enqueued::Written {
                conn.insert(event);
            }
        }
        Ok(told)
    }
}
