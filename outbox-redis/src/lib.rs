#![doc = include_str!("../docs.md")]

mod check;
mod chunk;
mod config;
mod connection;
mod error;
mod publisher;
mod reply;
mod tls;
mod trim;
mod wire;

pub use config::RedisConfig;
pub use publisher::RedisPublisher;
