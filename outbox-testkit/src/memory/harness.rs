//! The suites' harness for the reference store.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{Enqueue as _, Enqueued, Event, OutboxStore};
use uuid::Uuid;

use super::{MemoryOptions, MemoryStore, MemoryTx};
use crate::store_suite::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer};

/// Runs the store suites on [`MemoryStore`].
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryHarness;

struct MemoryOutbox(MemoryStore);

struct MemoryWriter(MemoryStore, MemoryTx);

#[async_trait]
impl StoreHarness for MemoryHarness {
    fn gates(&self) -> StoreGates {
        StoreGates {
            unreadable: true,
            sessions: false,
            concurrent_writers: true,
            keeps_delivered: true,
        }
    }

    async fn fresh(&self, options: StoreOptions) -> Arc<dyn Outbox> {
        Arc::new(MemoryOutbox(MemoryStore::new(MemoryOptions {
            lanes: options.lanes,
            lease: options.lease,
            ..MemoryOptions::default()
        })))
    }
}

#[async_trait]
impl Outbox for MemoryOutbox {
    async fn open(&self) -> Arc<dyn OutboxStore> {
        Arc::new(self.0.clone())
    }

    async fn begin(&self) -> Box<dyn Writer> {
        Box::new(MemoryWriter(self.0.clone(), self.0.begin()))
    }

    async fn insert_unreadable(&self) -> bool {
        self.0.insert_unreadable(
            Uuid::now_v7(),
            "t",
            Some("odd"),
            "headers of an unknown form",
        );
        true
    }
}

#[async_trait]
impl Writer for MemoryWriter {
    async fn enqueue(&mut self, events: &[Event]) -> Vec<Enqueued> {
        let Self(store, tx) = self;
        match events {
            [one] => vec![store.enqueue(tx, one).await.expect("enqueue")],
            many => store.enqueue_all(tx, many).await.expect("enqueue"),
        }
    }

    async fn commit(self: Box<Self>) {
        self.1.commit();
    }

    async fn rollback(self: Box<Self>) {
        self.1.rollback();
    }
}
