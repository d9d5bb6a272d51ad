//! The publisher `redis`.

use std::sync::Arc;

use outbox_core::Publisher;
use outbox_redis::{RedisConfig, RedisPublisher};

use crate::{
    config::{BrokerConfig, set},
    exit::Failure,
};

pub(super) fn open(broker: BrokerConfig) -> Result<Arc<dyn Publisher>, Failure> {
    let settings = broker.settings;
    let mut config = RedisConfig::new(broker.url.expose());
    config.encoding = broker.encoding;
    settings.timeouts(&mut config.publish_timeout, &mut config.connect_timeout);
    config.ca_file = settings.ca_file;
    set(&mut config.transactional, settings.transactional);
    set(
        &mut config.pipeline_events_max,
        settings.pipeline_events_max,
    );
    set(&mut config.pipeline_bytes_max, settings.pipeline_bytes_max);
    config.stream_entries_max = settings.stream_entries_max;
    config.replicas_min = settings.replicas_min;
    config.field_bytes_max = settings.field_bytes_max;
    Ok(Arc::new(RedisPublisher::new(config)?))
}
