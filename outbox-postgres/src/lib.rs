#![doc = include_str!("../docs.md")]

#[cfg(feature = "sqlx")]
mod config;
#[cfg(feature = "sqlx")]
mod enqueue;
#[cfg(feature = "sqlx")]
mod error;
#[cfg(feature = "sqlx")]
mod migrate;
#[cfg(feature = "sqlx")]
mod sql;
#[cfg(feature = "sqlx")]
mod store;
#[cfg(feature = "sqlx")]
mod url;

#[cfg(feature = "sqlx")]
pub use config::{Partitions, PgConfig};
#[cfg(feature = "sqlx")]
pub use enqueue::PgOutbox;
#[cfg(feature = "sqlx")]
pub use migrate::migrations;
#[cfg(feature = "sqlx")]
pub use outbox_core::{DoneMode, Migration};
#[cfg(feature = "sqlx")]
pub use store::{PgLane, PgQueue};
