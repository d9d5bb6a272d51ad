#![doc = include_str!("../docs.md")]

mod answer;
mod check;
mod config;
mod connection;
mod error;
mod progress;
mod publisher;
mod request;
mod restate;
mod silence;
mod tls;
mod wire;

pub use config::NatsConfig;
pub use publisher::NatsPublisher;
