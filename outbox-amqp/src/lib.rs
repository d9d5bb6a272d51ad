#![doc = include_str!("../docs.md")]

mod batch;
mod check;
mod config;
mod connection;
mod declare;
mod error;
mod flight;
mod open;
mod publisher;
mod tls;
mod wire;

pub use config::{AmqpConfig, ExchangeType, QueueType};
pub use publisher::AmqpPublisher;
