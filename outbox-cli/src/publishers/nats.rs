//! The publisher `nats`.

use std::sync::Arc;

use outbox_core::Publisher;
use outbox_nats::{NatsConfig, NatsPublisher};

use crate::{
    config::{BrokerConfig, set},
    exit::Failure,
};

pub(super) fn open(broker: BrokerConfig) -> Result<Arc<dyn Publisher>, Failure> {
    let settings = broker.settings;
    let mut config = NatsConfig::new(broker.url.expose());
    config.encoding = broker.encoding;
    settings.timeouts(&mut config.publish_timeout, &mut config.connect_timeout);
    config.ca_file = settings.ca_file;
    config.credentials_file = settings.credentials_file;
    config.nkey_file = settings.nkey_file;
    set(
        &mut config.in_flight_events_max,
        settings.in_flight_events_max,
    );
    set(
        &mut config.in_flight_bytes_max,
        settings.in_flight_bytes_max,
    );
    config.message_bytes_max = settings.message_bytes_max;
    set(&mut config.streams, settings.streams.map(|names| names.0));
    set(
        &mut config.duplicate_window_min,
        settings.duplicate_window_min.map(|span| span.0),
    );
    set(&mut config.inbox_prefix, settings.inbox_prefix);
    config.domain = settings.domain;
    Ok(Arc::new(NatsPublisher::new(config)?))
}
