//! librdkafka's properties: which are ours, which are the user's.

use std::time::Duration;

use outbox_core::Result;
use rdkafka::{
    config::{ClientConfig, RDKafkaLogLevel},
    error::KafkaError,
};

use crate::config::{KafkaConfig, wrong};

/// What order, acknowledgement, deadline and bounds rest on, under all of librdkafka's names, and
/// the setting to use instead, where there is one.
const OWN: &[(&str, &str)] = &[
    ("acks", ""),
    ("batch.num.messages", "in_flight_events_max"),
    ("batch.size", "batch_bytes_max"),
    ("bootstrap.servers", "brokers"),
    ("compression.codec", "compression"),
    ("compression.type", "compression"),
    ("delivery.report.only.error", ""),
    ("delivery.timeout.ms", "publish_timeout"),
    ("enable.gapless.guarantee", ""),
    ("enable.idempotence", ""),
    ("log.queue", ""),
    ("max.in.flight", ""),
    ("max.in.flight.requests.per.connection", ""),
    ("message.max.bytes", "message_bytes_max"),
    ("message.send.max.retries", ""),
    ("message.timeout.ms", "publish_timeout"),
    ("metadata.broker.list", "brokers"),
    ("partitioner", ""),
    ("produce.offset.report", ""),
    ("queue.buffering.max.kbytes", "in_flight_bytes_max"),
    ("queue.buffering.max.messages", "in_flight_events_max"),
    ("queuing.strategy", ""),
    ("request.required.acks", ""),
    ("retries", ""),
    ("statistics.interval.ms", ""),
    ("transactional.id", ""),
];

/// Parts of the names of properties whose values are secrets.
const SECRET_PARTS: &[&str] = &[
    "password",
    "secret",
    "token",
    "oauthbearer.config",
    "assertion",
    ".key",
    "jwt",
    ".pem",
];

/// A batch is waited for no longer than this, unless the user says otherwise.
const LINGER_MS: &str = "1";

/// The codes of an isolated event: nothing shares its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Batching {
    /// Batches of at most so many bytes.
    Bytes(usize),
    /// Each event in a batch of its own, so that a refusal is its own.
    Single,
}

/// Refuses the user's properties that are ours, and what librdkafka does not know.
pub(crate) fn check(config: &KafkaConfig) -> Result<()> {
    for name in config.properties.keys() {
        if let Some((_, instead)) = OWN.iter().find(|(own, _)| own == name) {
            let error = wrong("the publisher sets this property itself")
                .context("setting", "properties")
                .context("property", name);
            return Err(match *instead {
                "" => error,
                instead => error.context("use instead", instead),
            });
        }
    }
    // Says by name which property or value is none.
    producer(config, Batching::Bytes(config.batch_bytes_max))
        .create_native_config()
        .map(drop)
        .map_err(|error| match error {
            KafkaError::ClientConfig(_, _, name, _) => {
                // The driver's words repeat the value.
                wrong("librdkafka does not know this property, or not with this value, or was built without it (feature `tls`)")
                    .context("setting", "properties")
                    .context("property", name)
            }
            _ => wrong("a property holds the byte 0").context("setting", "properties"),
        })
}

/// For a client that only asks.
pub(crate) fn client(config: &KafkaConfig) -> ClientConfig {
    let mut properties = ClientConfig::new();
    // What a property could not say; librdkafka's own view of the program's log level is none.
    properties.set_log_level(RDKafkaLogLevel::Info);
    let connect_ms = config.connect_timeout.as_millis().max(1_000);
    for (name, value) in [
        ("client.id", "outbox"),
        ("socket.keepalive.enable", "true"),
        ("socket.nagle.disable", "true"),
        // The defaults let a broker that is back wait for 10 s.
        ("reconnect.backoff.ms", "50"),
        ("reconnect.backoff.max.ms", "1000"),
    ] {
        properties.set(name, value);
    }
    properties.set("socket.connection.setup.timeout.ms", connect_ms.to_string());
    for (name, value) in &config.properties {
        properties.set(name, value);
    }
    properties.set("bootstrap.servers", &config.brokers);
    properties
}

/// For a producer.
pub(crate) fn producer(config: &KafkaConfig, batching: Batching) -> ClientConfig {
    let mut properties = client(config);
    if !["linger.ms", "queue.buffering.max.ms"]
        .iter()
        .any(|name| config.properties.contains_key(*name))
    {
        properties.set("linger.ms", LINGER_MS);
    }
    let (batch_bytes, batch_events) = match batching {
        Batching::Bytes(bytes) => (bytes, config.in_flight_events_max.min(1_000_000)),
        Batching::Single => (1, 1),
    };
    for (name, value) in [
        ("enable.idempotence", "true"),
        ("acks", "all"),
        // As Java's producers choose.
        ("partitioner", "murmur2_random"),
        ("compression.type", config.compression.as_str()),
        // The queue is bounded by the two below; sizes of events are looked at before.
        ("message.max.bytes", "1000000000"),
    ] {
        properties.set(name, value);
    }
    // A call ends by taking all of its events back, whole. If single ones expired, later ones of
    // their key could be stored without them.
    let expiry = config.publish_timeout + Duration::from_secs(60);
    properties.set("message.timeout.ms", expiry.as_millis().to_string());
    properties.set(
        "queue.buffering.max.messages",
        config.in_flight_events_max.to_string(),
    );
    properties.set(
        "queue.buffering.max.kbytes",
        (config.in_flight_bytes_max / 1024).to_string(),
    );
    properties.set("batch.size", batch_bytes.to_string());
    properties.set("batch.num.messages", batch_events.to_string());
    properties
}

/// The values that must never be shown.
pub(crate) fn secrets(config: &KafkaConfig) -> Vec<String> {
    let secret = |name: &str| SECRET_PARTS.iter().any(|part| name.contains(part));
    let values = config.properties.iter().filter(|(name, _)| secret(name));
    values
        .map(|(_, value)| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> KafkaConfig {
        let mut config = KafkaConfig::new("h:9092");
        config.properties.insert(name.to_owned(), value.to_owned());
        config
    }

    #[test]
    fn our_own_properties_are_refused_by_name() {
        for (name, instead) in OWN {
            let error = check(&with(name, "1")).unwrap_err().to_string();
            assert!(error.contains(&format!("property={name}")), "{error}");
            assert!(error.contains(instead), "{error}");
            assert!(error.contains("itself"), "{error}");
        }
        // What we set and the user can't change must be in the list, or the last would win.
        let plain = client(&KafkaConfig::new("h:9092"));
        let full = producer(&KafkaConfig::new("h:9092"), Batching::Single);
        let ours = full.config_map().into_keys();
        for name in ours.filter(|name| plain.get(name).is_none() && *name != "linger.ms") {
            assert!(OWN.iter().any(|(own, _)| *own == name), "{name}");
        }
    }

    #[test]
    fn unknown_properties_are_refused_by_name_without_their_value() {
        for (name, value) in [("no.such.thing", "hidden"), ("client.rack", "a\0hidden")] {
            let error = check(&with(name, value)).unwrap_err().to_string();
            assert!(error.contains("properties"), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        }
        let error = check(&with("security.protocol", "hidden")).unwrap_err();
        assert!(error.to_string().contains("security.protocol"), "{error}");
        assert!(!error.to_string().contains("hidden"), "{error}");
    }

    #[test]
    fn the_user_s_properties_reach_the_client_and_its_defaults_give_way() {
        let config = with("linger.ms", "7");
        check(&config).unwrap();
        let properties = producer(&config, Batching::Bytes(5));
        assert_eq!(properties.get("linger.ms"), Some("7"));
        assert_eq!(properties.get("batch.size"), Some("5"));
        let config = with("reconnect.backoff.max.ms", "9");
        assert_eq!(client(&config).get("reconnect.backoff.max.ms"), Some("9"));
    }

    #[test]
    fn each_setting_reaches_the_producer() {
        let mut config = KafkaConfig::new("h:9092");
        config.compression = crate::config::Compression::Gzip;
        config.in_flight_events_max = 77;
        config.in_flight_bytes_max = 5 << 20;
        let properties = producer(&config, Batching::Bytes(9));
        for (name, value) in [
            ("bootstrap.servers", "h:9092"),
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("compression.type", "gzip"),
            ("queue.buffering.max.messages", "77"),
            ("queue.buffering.max.kbytes", "5120"),
            ("batch.num.messages", "77"),
            ("batch.size", "9"),
        ] {
            assert_eq!(properties.get(name), Some(value), "{name}");
        }
        let single = producer(&config, Batching::Single);
        assert_eq!(single.get("batch.num.messages"), Some("1"));
        // I5: no record of a call expires by itself while others of its key are still sent.
        let expiry = properties.get("message.timeout.ms").unwrap();
        assert!(expiry.parse::<u128>().unwrap() > config.publish_timeout.as_millis());
    }

    #[test]
    fn secrets_are_known_by_the_name_of_their_property() {
        for name in [
            "sasl.password",
            "ssl.key.pem",
            "ssl.key.password",
            "sasl.oauthbearer.config",
        ] {
            assert_eq!(secrets(&with(name, " hidden ")), ["hidden"], "{name}");
        }
        assert!(secrets(&with("sasl.username", "u")).is_empty());
    }
}
