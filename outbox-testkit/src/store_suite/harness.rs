//! What a store's author writes to run the suite.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{Enqueued, Event, OutboxStore};

/// How a fresh store is to be set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// The lease of every claim.
    pub lease: Duration,
    /// Lanes: of the whole store where lanes are shards (ordered stores), of each relay where they
    /// are competing workers.
    pub lanes: usize,
}

/// What the harness can do beside the contract. Each gate is asserted: a harness that claims one
/// must do it, and one that does not claim it must not.
#[expect(
    clippy::struct_excessive_bools,
    reason = "abilities that do not depend on each other"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreGates {
    /// [`Outbox::insert_unreadable`] makes a row that can't be read.
    pub unreadable: bool,
    /// [`Outbox::open_transactions`] tells how many sessions have a transaction open.
    pub sessions: bool,
    /// [`Outbox::begin`] may be called while another transaction is open.
    pub concurrent_writers: bool,
    /// Delivered events stay in the store until they are cleaned.
    pub keeps_delivered: bool,
}

/// Makes stores for the suite. One value is made for each test.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// What it can do.
    fn gates(&self) -> StoreGates;

    /// A fresh, migrated, empty outbox that nothing else uses. Panics when it can't be made.
    async fn fresh(&self, options: StoreOptions) -> Arc<dyn Outbox>;
}

/// One outbox under test. Methods panic when the database fails: the test is then red.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// A handle of its own, as another relay process would open one.
    async fn open(&self) -> Arc<dyn OutboxStore>;

    /// Begins a writer's transaction on a connection of its own.
    async fn begin(&self) -> Box<dyn Writer>;

    /// Commits one row with topic `t` that can't be read as an event; false when that can't be
    /// done here.
    async fn insert_unreadable(&self) -> bool {
        false
    }

    /// How many sessions of relays have a transaction open at this moment; `None` where the store
    /// has no sessions.
    async fn open_transactions(&self) -> Option<u64> {
        None
    }

    /// Removes the outbox. Called once, also after a failed test.
    async fn destroy(&self) {}
}

/// A writer's open transaction.
#[async_trait]
pub trait Writer: Send {
    /// Enqueues through the store's `Enqueue`, in one call, and gives what it answers.
    async fn enqueue(&mut self, events: &[Event]) -> Vec<Enqueued>;

    /// Commits.
    async fn commit(self: Box<Self>);

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}
