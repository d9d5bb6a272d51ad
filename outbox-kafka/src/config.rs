//! The settings of the publisher.

use std::{collections::BTreeMap, fmt, time::Duration};

use outbox_core::{Encoding, Error, ErrorKind, Result, setting};
use serde::Deserialize;

use crate::properties;

/// Settings of [`KafkaPublisher`](crate::KafkaPublisher). Only `brokers` has no default.
///
/// Durations are read as text with a unit (`"30s"`, `"500ms"`). `Debug` shows the names of
/// `properties` without their values.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// `host:port` of one or more brokers, separated by commas; the others are learned from them.
    pub brokers: String,
    /// The longest one publish call may take, the way to a connection included. Default 30 s: the
    /// relay renews its leases meanwhile, and a shorter one makes copies on a busy server. From
    /// 200 ms to 1 hour.
    #[serde(default = "publish_timeout", deserialize_with = "setting::duration")]
    pub publish_timeout: Duration,
    /// The longest that asking the brokers for topics may take, the way to a connection included.
    /// Default 5 s: a dead address must not eat the whole of `publish_timeout`.
    #[serde(default = "connect_timeout", deserialize_with = "setting::duration")]
    pub connect_timeout: Duration,
    /// Producers of librdkafka at most; each serves one publish call at a time, so that the end of
    /// one call takes nothing from another. Further calls wait. Default 4: each has a thread for
    /// every broker.
    #[serde(default = "producers_max")]
    pub producers_max: usize,
    /// Events handed to one producer that are not answered yet. Default 10,000; the rest of a call
    /// waits for answers.
    #[serde(default = "in_flight_events_max")]
    pub in_flight_events_max: usize,
    /// Bytes of the same, from 1 MiB on. Default 32 MiB: all producers together must fit into the
    /// memory.
    #[serde(default = "in_flight_bytes_max")]
    pub in_flight_bytes_max: usize,
    /// Bytes in one batch of records; an event above it goes alone. Default 1,000,000, which is
    /// under Kafka's own limit; a topic with a lower limit lowers it.
    #[serde(default = "batch_bytes_max")]
    pub batch_bytes_max: usize,
    /// How batches are compressed. Default: not at all.
    #[serde(default)]
    pub compression: Compression,
    /// The largest event in bytes, as one batch of its own, not compressed. Default: the topic's
    /// `max.message.bytes`, or 1,048,588 where asking for it is not permitted.
    #[serde(default)]
    pub message_bytes_max: Option<usize>,
    /// How the attributes of events are named for consumers. Default: plain.
    #[serde(default)]
    pub encoding: Encoding,
    /// Further properties of librdkafka, as `security.protocol`, `sasl.username` or
    /// `ssl.ca.location`. Those that order and acknowledgement rest on are refused.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

/// How batches of records are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Fast, for text somewhat less than half.
    Lz4,
    /// About as lz4.
    Snappy,
    /// Smaller and several times slower.
    Gzip,
}

impl Compression {
    /// Kafka's name of it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
            Self::Gzip => "gzip",
        }
    }
}

const fn publish_timeout() -> Duration {
    Duration::from_secs(30)
}
const fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}
const fn producers_max() -> usize {
    4
}
const fn in_flight_events_max() -> usize {
    10_000
}
const fn in_flight_bytes_max() -> usize {
    32 << 20
}
const fn batch_bytes_max() -> usize {
    1_000_000
}

/// A call needs some of its time to take back what was not sent.
const PUBLISH_TIMEOUT_MIN: Duration = Duration::from_millis(200);
/// librdkafka counts milliseconds in 32 bits, and some properties go no further than this.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// What librdkafka allows for its own limits.
const EVENTS_MAX: usize = 10_000_000;
const BYTES: std::ops::RangeInclusive<usize> = 1 << 20..=1 << 30;
const MESSAGE_BYTES_MAX: usize = 1_000_000_000;
const PRODUCERS_MAX: usize = 64;

impl KafkaConfig {
    /// The defaults for these brokers.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            publish_timeout: publish_timeout(),
            connect_timeout: connect_timeout(),
            producers_max: producers_max(),
            in_flight_events_max: in_flight_events_max(),
            in_flight_bytes_max: in_flight_bytes_max(),
            batch_bytes_max: batch_bytes_max(),
            compression: Compression::default(),
            message_bytes_max: None,
            encoding: Encoding::Plain,
            properties: BTreeMap::new(),
        }
    }

    /// Checks the form of the brokers, the bounds and each property. No I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting or property; never with a property's value.
    pub fn validate(&self) -> Result<()> {
        check_brokers(&self.brokers)?;
        self.encoding.validate()?;
        let in_bounds = [
            (
                "publish_timeout",
                (PUBLISH_TIMEOUT_MIN..=TIMEOUT_MAX).contains(&self.publish_timeout),
                "from 200 ms to 1 hour",
            ),
            (
                "connect_timeout",
                !self.connect_timeout.is_zero() && self.connect_timeout <= TIMEOUT_MAX,
                "more than zero and at most 1 hour",
            ),
            (
                "producers_max",
                (1..=PRODUCERS_MAX).contains(&self.producers_max),
                "from 1 to 64",
            ),
            (
                "in_flight_events_max",
                (1..=EVENTS_MAX).contains(&self.in_flight_events_max),
                "from 1 to 10,000,000",
            ),
            (
                "in_flight_bytes_max",
                BYTES.contains(&self.in_flight_bytes_max),
                "from 1 MiB to 1 GiB",
            ),
            (
                "batch_bytes_max",
                (1..=MESSAGE_BYTES_MAX).contains(&self.batch_bytes_max),
                "from 1 to 1,000,000,000",
            ),
            (
                "message_bytes_max",
                self.message_bytes_max
                    .is_none_or(|bytes| (1..=MESSAGE_BYTES_MAX).contains(&bytes)),
                "from 1 to 1,000,000,000",
            ),
        ];
        if let Some((setting, _, bounds)) = in_bounds.iter().find(|(_, good, _)| !good) {
            return Err(wrong("the setting is out of its bounds")
                .context("setting", setting)
                .context("bounds", bounds));
        }
        properties::check(self)
    }
}

/// Each of the list is `host:port`. librdkafka would take anything and look for it for ever.
fn check_brokers(brokers: &str) -> Result<()> {
    let good = |broker: &str| {
        let Some((host, port)) = broker.trim().rsplit_once(':') else {
            return false;
        };
        // `user:password@host` is how other brokers' URLs look; here it would be shown in errors.
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '@' | '/');
        !host.is_empty() && !host.contains(odd) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if brokers.split(',').all(good) {
        return Ok(());
    }
    Err(
        wrong("the brokers have not the form host:port[,host:port…]; user and password go into `properties`")
            .context("setting", "brokers"),
    )
}

pub(crate) fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read Kafka settings", what)
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brokers = match check_brokers(&self.brokers) {
            Ok(()) => self.brokers.as_str(),
            Err(_) => "malformed",
        };
        f.debug_struct("KafkaConfig")
            .field("brokers", &brokers)
            .field("publish_timeout", &self.publish_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("producers_max", &self.producers_max)
            .field("in_flight_events_max", &self.in_flight_events_max)
            .field("in_flight_bytes_max", &self.in_flight_bytes_max)
            .field("batch_bytes_max", &self.batch_bytes_max)
            .field("compression", &self.compression)
            .field("message_bytes_max", &self.message_bytes_max)
            .field("encoding", &self.encoding)
            .field("properties", &self.properties.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_the_defaults_and_unknown_keys_are_refused() {
        let read: KafkaConfig = toml::from_str("brokers = 'h:9092'").unwrap();
        assert_eq!(read, KafkaConfig::new("h:9092"));
        let read: KafkaConfig = toml::from_str(
            "brokers = 'h:1,g:2'\npublish_timeout = '1500ms'\ncompression = 'lz4'\n\
             properties = { 'client.id' = 'x' }",
        )
        .unwrap();
        assert_eq!(read.publish_timeout, Duration::from_millis(1500));
        assert_eq!(read.compression, Compression::Lz4);
        assert_eq!(read.properties["client.id"], "x");
        read.validate().unwrap();
        for bad in [
            "acks = '1'",
            "connect_timeout = 'soon'",
            "compression = 'zip'",
        ] {
            let text = format!("brokers = 'h:1'\n{bad}");
            let error = toml::from_str::<KafkaConfig>(&text).unwrap_err();
            let word = bad.split(['=', '\'']).nth(2).unwrap_or(bad);
            let name = bad.split(' ').next().unwrap();
            let shown = error.to_string();
            assert!(shown.contains(name) || shown.contains(word), "{shown}");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let good = KafkaConfig::new("h:9092");
        good.validate().unwrap();
        let zero = Duration::ZERO;
        let endless = Duration::MAX;
        let table: [(&str, KafkaConfig); 12] = [
            (
                "publish_timeout",
                KafkaConfig {
                    publish_timeout: zero,
                    ..good.clone()
                },
            ),
            (
                "publish_timeout",
                KafkaConfig {
                    publish_timeout: endless,
                    ..good.clone()
                },
            ),
            (
                "connect_timeout",
                KafkaConfig {
                    connect_timeout: zero,
                    ..good.clone()
                },
            ),
            (
                "connect_timeout",
                KafkaConfig {
                    connect_timeout: endless,
                    ..good.clone()
                },
            ),
            (
                "producers_max",
                KafkaConfig {
                    producers_max: 0,
                    ..good.clone()
                },
            ),
            (
                "producers_max",
                KafkaConfig {
                    producers_max: 65,
                    ..good.clone()
                },
            ),
            (
                "in_flight_events_max",
                KafkaConfig {
                    in_flight_events_max: 0,
                    ..good.clone()
                },
            ),
            (
                "in_flight_bytes_max",
                KafkaConfig {
                    in_flight_bytes_max: 1,
                    ..good.clone()
                },
            ),
            (
                "batch_bytes_max",
                KafkaConfig {
                    batch_bytes_max: 0,
                    ..good.clone()
                },
            ),
            (
                "message_bytes_max",
                KafkaConfig {
                    message_bytes_max: Some(0),
                    ..good.clone()
                },
            ),
            (
                "brokers",
                KafkaConfig {
                    brokers: String::new(),
                    ..good.clone()
                },
            ),
            (
                "brokers",
                KafkaConfig {
                    brokers: "h:9092,".to_owned(),
                    ..good.clone()
                },
            ),
        ];
        for (name, config) in table {
            let error = config.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }

    /// Case creds-in-log: a password is shown neither where it belongs nor where it does not.
    #[test]
    fn i15_no_setting_shows_a_password() {
        let mut configs = vec![];
        for brokers in [
            "user:p@ss:w/ord%21@localhost:9092",
            "kafka://user:p%40ss%3Aw%2Ford%2521@localhost:9092",
            "p@ss:w/ord%21",
        ] {
            configs.push(KafkaConfig::new(brokers));
        }
        for (name, value) in [
            ("sasl.password", "p@ss:w/ord%21"),
            ("security.protocol", "p@ss:w/ord%21"),
            ("no.such", "p@ss:w/ord%21"),
            ("acks", "p@ss:w/ord%21"),
            ("sasl.password", "p@ss\0ord%21"),
        ] {
            let mut config = KafkaConfig::new("localhost:9092");
            config.properties.insert(name.to_owned(), value.to_owned());
            configs.push(config);
        }
        for config in configs {
            let checked = config.validate();
            let shown = format!("{config:?} {checked:?}");
            let displayed = checked.err().map(|error| error.to_string());
            for secret in ["p@ss", "p%40ss", "ord%21", "w/ord", "ord!"] {
                assert!(!shown.contains(secret), "{secret} in {shown}");
                assert!(!displayed.as_ref().is_some_and(|text| text.contains(secret)));
            }
        }
    }
}
