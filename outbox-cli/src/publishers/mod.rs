//! Publishers by configuration.

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
mod stdout;

use std::sync::Arc;

use outbox_core::Publisher;
use tokio_util::sync::CancellationToken;

use crate::{config::PublisherConfig, exit::Failure};

/// Makes a publisher; connects to nothing. `reader_gone` is cancelled when whoever read standard
/// output has closed it.
pub(crate) fn open(
    config: PublisherConfig,
    reader_gone: &CancellationToken,
) -> Result<Arc<dyn Publisher>, Failure> {
    let broker = match config {
        PublisherConfig::Stdout => {
            return Ok(Arc::new(stdout::StdoutPublisher::new(reader_gone.clone())?));
        }
        PublisherConfig::Broker(broker) => *broker,
    };
    match broker.kind {
        #[cfg(feature = "amqp")]
        crate::config::PublisherKind::Amqp => amqp::open(broker),
        #[cfg(feature = "http")]
        crate::config::PublisherKind::Http => http::open(broker),
        #[cfg(feature = "kafka")]
        crate::config::PublisherKind::Kafka => kafka::open(broker),
        #[cfg(feature = "nats")]
        crate::config::PublisherKind::Nats => nats::open(broker),
        #[cfg(feature = "redis")]
        crate::config::PublisherKind::Redis => redis::open(broker),
        // What is not built in; stdout was dealt with above.
        kind => Err(Failure::usage(format!(
            "configuration: this program was built without the publisher {kind} — build it with \
             the feature {kind}",
            kind = kind.name()
        ))),
    }
}
