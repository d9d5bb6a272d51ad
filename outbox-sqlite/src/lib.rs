#![doc = include_str!("../docs.md")]

mod config;
mod enqueue;
mod error;
mod migrate;
mod store;

pub use config::{DoneMode, SqliteConfig};
pub use enqueue::SqliteOutbox;
pub use migrate::{Migration, migrations};
pub use store::{SqliteLane, SqliteQueue};
