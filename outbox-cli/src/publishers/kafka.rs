//! The publisher `kafka`.

use std::{collections::BTreeMap, sync::Arc};

use outbox_core::Publisher;
use outbox_kafka::{Compression, KafkaConfig, KafkaPublisher};

use crate::{
    config::{BrokerConfig, CompressionName, Secret, set},
    exit::Failure,
};

pub(super) fn open(broker: BrokerConfig) -> Result<Arc<dyn Publisher>, Failure> {
    let settings = broker.settings;
    let mut config = KafkaConfig::new(brokers(&broker.url));
    config.encoding = broker.encoding;
    config.properties = properties(broker.properties.as_ref())?;
    settings.timeouts(&mut config.publish_timeout, &mut config.connect_timeout);
    set(&mut config.producers_max, settings.producers_max);
    set(
        &mut config.in_flight_events_max,
        settings.in_flight_events_max,
    );
    set(
        &mut config.in_flight_bytes_max,
        settings.in_flight_bytes_max,
    );
    set(&mut config.batch_bytes_max, settings.batch_bytes_max);
    set(
        &mut config.compression,
        settings.compression.map(|name| match name {
            CompressionName::None => Compression::None,
            CompressionName::Lz4 => Compression::Lz4,
            CompressionName::Snappy => Compression::Snappy,
            CompressionName::Gzip => Compression::Gzip,
        }),
    );
    config.message_bytes_max = settings.message_bytes_max;
    Ok(Arc::new(KafkaPublisher::new(config)?))
}

/// `kafka://host:port,host:port`, as brokers are written there; the crate checks the rest.
fn brokers(url: &Secret) -> &str {
    let url = url.expose();
    url.strip_prefix("kafka://")
        .unwrap_or(url)
        .trim_end_matches('/')
}

/// Lines of `name=value`, as in the files of Kafka's own programs; `#` begins a comment.
fn properties(text: Option<&Secret>) -> Result<BTreeMap<String, String>, Failure> {
    let lines = text.map_or("", Secret::expose).lines().map(str::trim);
    let mut properties = BTreeMap::new();
    for (number, line) in (1..).zip(lines) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line may hold a password, so that only its number is told.
        let Some((name, value)) = line.split_once('=') else {
            return Err(Failure::usage(format!(
                "configuration: line {number} of the publisher's properties is not name=value"
            )));
        };
        properties.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_lines_and_brokers_come_from_the_url() {
        let text = Secret::new("# sign-in\nsasl.username = relay\n\nsasl.password=a=b\n");
        let read = properties(Some(&text)).unwrap();
        let pairs: Vec<_> = read.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            pairs,
            [("sasl.password", "a=b"), ("sasl.username", "relay")]
        );
        assert!(properties(None).unwrap().is_empty());
        assert_eq!(brokers(&Secret::new("kafka://a:1,b:2/")), "a:1,b:2");
    }

    /// Case creds-in-log.
    #[test]
    fn i15_a_line_that_is_none_is_told_by_its_number() {
        let failure = properties(Some(&Secret::new("a=b\ns3cret"))).unwrap_err();
        let shown = format!("{failure:?}");
        assert!(
            shown.contains("line 2") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
}
