#![doc = include_str!("../docs.md")]

mod batch;
mod check;
mod cluster;
mod config;
mod context;
mod error;
mod lease;
mod properties;
mod publisher;
mod wire;

pub use config::{Compression, KafkaConfig};
pub use publisher::KafkaPublisher;
