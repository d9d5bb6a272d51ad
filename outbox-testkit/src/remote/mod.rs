//! A store's handle in another process, for stores that live in a file: the suites then run with the
//! locks and caches that relays of several processes have.
//!
//! The other program serves a handle on its standard input and output with [`serve`]; the test reaches
//! it by [`RemoteStore`], which has all traits of an [`OutboxStore`](outbox_core::OutboxStore).

mod client;
mod server;
mod travel;
mod wire;

pub use client::RemoteStore;
pub use server::serve;
