//! Publishers by configuration.

mod stdout;

use std::sync::Arc;

use outbox_core::Publisher;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{PublisherConfig, PublisherSettings, Secret},
    exit::Failure,
};

/// Makes a publisher; connects to nothing. `reader_gone` is cancelled when whoever read standard
/// output has closed it.
pub(crate) fn open(
    config: PublisherConfig,
    reader_gone: &CancellationToken,
) -> Result<Arc<dyn Publisher>, Failure> {
    match config {
        PublisherConfig::Stdout => Ok(Arc::new(stdout::StdoutPublisher::new(reader_gone.clone())?)),
        PublisherConfig::Redis { url, settings } => redis(&url, &settings),
    }
}

#[cfg(feature = "redis")]
fn redis(url: &Secret, settings: &PublisherSettings) -> Result<Arc<dyn Publisher>, Failure> {
    use crate::config::set;

    let mut config = outbox_redis::RedisConfig::new(url.expose());
    set(
        &mut config.publish_timeout,
        settings.publish_timeout.map(|span| span.0),
    );
    set(
        &mut config.connect_timeout,
        settings.connect_timeout.map(|span| span.0),
    );
    set(&mut config.transactional, settings.transactional);
    set(
        &mut config.pipeline_events_max,
        settings.pipeline_events_max,
    );
    set(&mut config.pipeline_bytes_max, settings.pipeline_bytes_max);
    config.ca_file.clone_from(&settings.ca_file);
    config.stream_entries_max = settings.stream_entries_max;
    config.replicas_min = settings.replicas_min;
    config.field_bytes_max = settings.field_bytes_max;
    Ok(Arc::new(outbox_redis::RedisPublisher::new(config)?))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &Secret, _: &PublisherSettings) -> Result<Arc<dyn Publisher>, Failure> {
    Err(Failure::usage(
        "configuration: this program was built without Redis — build it with the feature redis",
    ))
}
