//! The publisher `http`: one POST an event.

mod answer;
mod config;
mod connect;
mod failure;
mod publisher;
mod request;
mod signature;
mod suspect;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use outbox_core::Publisher;

use self::{config::HttpConfig, publisher::HttpPublisher};
use crate::{
    config::{BrokerConfig, set},
    exit::Failure,
};

pub(super) fn open(broker: BrokerConfig) -> Result<Arc<dyn Publisher>, Failure> {
    let settings = broker.settings;
    let mut config = HttpConfig::new(broker.url);
    config.encoding = broker.encoding;
    settings.timeouts(&mut config.publish_timeout, &mut config.connect_timeout);
    config.ca_file = settings.ca_file;
    config.secret = broker.secret;
    set(
        &mut config.requests_in_flight_max,
        settings.requests_in_flight_max,
    );
    Ok(Arc::new(HttpPublisher::new(&config)?))
}
