//! Writers' transactions.

use std::time::Duration;

use outbox_core::{Enqueue, Event, Result};

use super::{row::Body, store::MemoryStore};

/// An open transaction. Nothing of it is seen before [`commit`](Self::commit); dropping it rolls
/// back (I1).
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct MemoryTx {
    store: MemoryStore,
    rows: Vec<(Body, Duration)>,
}

impl MemoryTx {
    pub(super) fn new(store: MemoryStore) -> Self {
        Self {
            store,
            rows: Vec::new(),
        }
    }

    /// Inserts an event; its creation time is now, not the commit's.
    pub fn enqueue(&mut self, event: &Event) {
        self.rows
            .push((Body::Event(event.clone()), self.store.now()));
    }

    /// Makes all of it visible at once, behind everything that was committed before.
    pub fn commit(self) {
        self.store.clone().commit(self.rows);
    }

    /// Forgets all of it.
    pub fn rollback(self) {}
}

impl Enqueue<MemoryTx> for MemoryStore {
    async fn enqueue(&self, conn: &mut MemoryTx, event: &Event) -> Result<()> {
        conn.enqueue(event);
        Ok(())
    }

    async fn enqueue_all(&self, conn: &mut MemoryTx, events: &[Event]) -> Result<()> {
        for event in events {
            conn.enqueue(event);
        }
        Ok(())
    }
}
