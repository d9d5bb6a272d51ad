//! The configuration: flags beat environment variables, which beat the file.
//!
//! [`model`] is what file and environment may say, [`layers`] reads and merges them, and
//! [`resolve`] turns the result and the flags into checked settings.

mod defaults;
mod duration;
mod layers;
mod model;
mod overlap;
#[cfg(test)]
mod properties;
mod resolve;
mod secret;

pub(crate) use defaults::set;
pub(crate) use duration::parse_duration;
pub(crate) use layers::load;
#[cfg(feature = "kafka")]
pub(crate) use model::CompressionName;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use model::Partitioning;
#[cfg(feature = "amqp")]
pub(crate) use model::{ExchangeTypeName, QueueTypeName};
pub(crate) use model::{LogFormat, PublisherKind, Settings, StoreKind};
pub(crate) use overlap::refuse as refuse_overlap;
#[cfg(any(
    feature = "amqp",
    feature = "http",
    feature = "kafka",
    feature = "nats",
    feature = "redis"
))]
pub(crate) use resolve::BrokerConfig;
pub(crate) use resolve::{Config, LogConfig, Parts, PublisherConfig, RouteConfig, StoreConfig};
pub(crate) use secret::Secret;
