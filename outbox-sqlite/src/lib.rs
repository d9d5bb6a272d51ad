#![doc = include_str!("../docs.md")]

mod config;
mod enqueue;
mod error;
mod migrate;
mod store;

pub use config::SqliteConfig;
pub use enqueue::SqliteOutbox;
pub use migrate::migrations;
pub use outbox_core::{DoneMode, Migration};
pub use store::{SqliteLane, SqliteQueue};
