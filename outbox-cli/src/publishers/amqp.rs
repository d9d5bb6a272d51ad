//! The publisher `amqp`.

use std::sync::Arc;

use outbox_amqp::{AmqpConfig, AmqpPublisher, ExchangeType, QueueType};
use outbox_core::Publisher;

use crate::{
    config::{BrokerConfig, ExchangeTypeName, QueueTypeName, set},
    exit::Failure,
};

pub(super) fn open(broker: BrokerConfig) -> Result<Arc<dyn Publisher>, Failure> {
    let settings = broker.settings;
    let mut config = AmqpConfig::new(broker.url.expose());
    settings.timeouts(&mut config.publish_timeout, &mut config.connect_timeout);
    config.encoding = broker.encoding;
    config.ca_file = settings.ca_file;
    set(&mut config.heartbeat, settings.heartbeat.map(|span| span.0));
    for (field, bound) in [
        (
            &mut config.in_flight_events_max,
            settings.in_flight_events_max,
        ),
        (
            &mut config.in_flight_bytes_max,
            settings.in_flight_bytes_max,
        ),
        (&mut config.message_bytes_max, settings.message_bytes_max),
    ] {
        set(field, bound);
    }
    config.declare_exchange = settings.declare_exchange;
    config.declare_queue = settings.declare_queue;
    set(
        &mut config.declare_exchange_type,
        settings.declare_exchange_type.map(|name| match name {
            ExchangeTypeName::Topic => ExchangeType::Topic,
            ExchangeTypeName::Direct => ExchangeType::Direct,
            ExchangeTypeName::Fanout => ExchangeType::Fanout,
        }),
    );
    set(
        &mut config.declare_queue_type,
        settings.declare_queue_type.map(|name| match name {
            QueueTypeName::Quorum => QueueType::Quorum,
            QueueTypeName::Classic => QueueType::Classic,
            QueueTypeName::Stream => QueueType::Stream,
        }),
    );
    set(
        &mut config.declare_binding_key,
        settings.declare_binding_key,
    );
    Ok(Arc::new(AmqpPublisher::new(config)?))
}
