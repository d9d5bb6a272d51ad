//! The in-memory store: the reference for what ordered stores must do.
//!
//! Lanes, leases, fences, parking, crash marks and operators' requests are all there; rows live in
//! ordered maps, time is tokio's, ids of batches count up, so that a paused single-threaded test
//! repeats to the letter.
//!
//! ```
//! # outbox_testkit::block_on(async {
//! use outbox_core::{Event, Store};
//! use outbox_testkit::memory::MemoryStore;
//!
//! let store = MemoryStore::default();
//! let mut tx = store.begin();
//! tx.enqueue(&Event::new("orders", "OrderPlaced").key("7").bytes("…").unwrap());
//! tx.commit();
//! assert!(store.check().await.is_ok());
//! # });
//! ```

mod clean;
mod clock;
mod dead;
mod dedup;
mod harness;
mod inspect;
mod lane;
mod lane_state;
mod mutation;
mod parked;
mod row;
mod settle;
mod standing;
mod state;
mod store;
mod transaction;

pub use harness::MemoryHarness;
pub use mutation::Mutation;
pub use store::{MemoryOptions, MemoryStore};
pub use transaction::MemoryTx;
