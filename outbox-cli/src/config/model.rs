//! What the file and the environment may say. Everything is optional here: what is left out keeps
//! the default of the crate that it configures.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use outbox_core::{OnDead, TopicPattern};
use serde::{Deserialize, Deserializer, de};

use super::{duration::Span, secret::Secret};

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    pub(crate) store: StoreSettings,
    pub(crate) relay: RelaySettings,
    pub(crate) routes: BTreeMap<String, RouteSettings>,
    pub(crate) http: HttpSettings,
    pub(crate) log: LogSettings,
}

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreKind {
    /// PostgreSQL, events as rows of a queue.
    #[default]
    PostgresQueue,
    /// A SQLite file, events as rows that keep the order of each key.
    Sqlite,
}

/// Whether a migration makes the table one of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Partitioning {
    None,
    Daily,
    Monthly,
}

impl StoreSettings {
    /// The kind that is written, or that of the URL.
    pub(crate) fn kind_for(&self, url: Option<&Secret>) -> StoreKind {
        let of_url = || {
            let is_file = url.is_some_and(|url| url.expose().starts_with("sqlite:"));
            is_file.then_some(StoreKind::Sqlite)
        };
        self.kind.or_else(of_url).unwrap_or_default()
    }
}

/// `[store]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StoreSettings {
    pub(crate) kind: Option<StoreKind>,
    pub(crate) url: Option<Secret>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) schema: Option<String>,
    pub(crate) pool_size: Option<u32>,
    pub(crate) connect_timeout: Option<Span>,
    pub(crate) statement_timeout: Option<Span>,
    pub(crate) lease: Option<Span>,
    pub(crate) workers: Option<usize>,
    /// Keep delivered events as rows (true) or delete them at once.
    pub(crate) keep_done: Option<bool>,
    pub(crate) partitions: Option<Partitioning>,
    pub(crate) event_bytes_max: Option<usize>,
    /// How long delivered events are kept.
    pub(crate) retention: Option<Span>,
    /// How long dedup keys are kept.
    pub(crate) dedup_retention: Option<Span>,
}

/// `[relay]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RelaySettings {
    pub(crate) batch_events_max: Option<usize>,
    pub(crate) batch_bytes_max: Option<usize>,
    pub(crate) poll_min: Option<Span>,
    pub(crate) poll_max: Option<Span>,
    pub(crate) publish_timeout: Option<Span>,
    pub(crate) shutdown_grace: Option<Span>,
    pub(crate) acquire_interval: Option<Span>,
    pub(crate) inspect_interval: Option<Span>,
    pub(crate) clean_interval: Option<Span>,
    pub(crate) store_backoff_max: Option<Span>,
    pub(crate) worker: Option<String>,
}

/// `[routes.NAME]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RouteSettings {
    pub(crate) topics: Option<Topics>,
    pub(crate) publisher: PublisherSettings,
    pub(crate) retry: RetrySettings,
    /// Other policies for some of the topics; the first that fits counts.
    pub(crate) retry_for: Vec<RetryForSettings>,
    pub(crate) strict_order: Option<bool>,
    pub(crate) breaker: BreakerSettings,
}

/// Which publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PublisherKind {
    /// RabbitMQ: a topic is exchange/routing.key, or a queue.
    Amqp,
    /// Webhooks: one POST an event.
    Http,
    /// NATS JetStream: a topic is a subject.
    Nats,
    /// Redis Streams: a topic is a stream.
    Redis,
    /// Standard output: one line of JSON an event.
    Stdout,
}

impl PublisherKind {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amqp => "amqp",
            Self::Http => "http",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Stdout => "stdout",
        }
    }

    /// The kind that a URL with this scheme is of.
    pub(crate) fn of_scheme(scheme: &str) -> Option<Self> {
        match scheme {
            "amqp" | "amqps" => Some(Self::Amqp),
            "http" | "https" => Some(Self::Http),
            "nats" | "tls" => Some(Self::Nats),
            "redis" | "rediss" => Some(Self::Redis),
            _ => None,
        }
    }

    /// What a URL looks like; `None` for a kind that has none.
    pub(crate) fn url_example(self) -> Option<&'static str> {
        match self {
            Self::Amqp => Some("amqp://host:5672/%2f"),
            Self::Http => Some("https://host/path"),
            Self::Nats => Some("nats://host:4222"),
            Self::Redis => Some("redis://host:6379/0"),
            Self::Stdout => None,
        }
    }
}

/// How the attributes of events are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingName {
    Plain,
    CloudEvents,
    Debezium,
}

/// The type of an exchange to declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExchangeTypeName {
    Topic,
    Direct,
    Fanout,
}

/// The type of a queue to declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueueTypeName {
    Quorum,
    Classic,
    Stream,
}

/// `[routes.NAME.publisher]`, the keys of all kinds; which ones a kind takes is checked later.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PublisherSettings {
    pub(crate) kind: Option<PublisherKind>,
    pub(crate) url: Option<Secret>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) publish_timeout: Option<Span>,
    pub(crate) connect_timeout: Option<Span>,
    pub(crate) encoding: Option<EncodingName>,
    /// Of CloudEvents.
    pub(crate) source: Option<String>,
    pub(crate) transactional: Option<bool>,
    pub(crate) pipeline_events_max: Option<usize>,
    pub(crate) pipeline_bytes_max: Option<usize>,
    pub(crate) stream_entries_max: Option<u64>,
    pub(crate) replicas_min: Option<u32>,
    pub(crate) field_bytes_max: Option<usize>,
    pub(crate) credentials_file: Option<PathBuf>,
    pub(crate) nkey_file: Option<PathBuf>,
    pub(crate) in_flight_events_max: Option<usize>,
    pub(crate) in_flight_bytes_max: Option<usize>,
    pub(crate) message_bytes_max: Option<usize>,
    pub(crate) streams: Option<Names>,
    pub(crate) duplicate_window_min: Option<Span>,
    pub(crate) inbox_prefix: Option<String>,
    pub(crate) domain: Option<String>,
    pub(crate) heartbeat: Option<Span>,
    pub(crate) declare_exchange: Option<String>,
    pub(crate) declare_exchange_type: Option<ExchangeTypeName>,
    pub(crate) declare_queue: Option<String>,
    pub(crate) declare_queue_type: Option<QueueTypeName>,
    pub(crate) declare_binding_key: Option<String>,
    /// Of webhooks: signs them.
    pub(crate) secret: Option<Secret>,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) requests_in_flight_max: Option<usize>,
}

impl PublisherSettings {
    /// Sets those that are written.
    #[cfg_attr(
        not(any(
            feature = "amqp",
            feature = "http",
            feature = "nats",
            feature = "redis"
        )),
        expect(dead_code, reason = "there is no publisher to read it")
    )]
    pub(crate) fn timeouts(&self, publish: &mut Duration, connect: &mut Duration) {
        for (field, span) in [
            (publish, self.publish_timeout),
            (connect, self.connect_timeout),
        ] {
            if let Some(span) = span {
                *field = span.0;
            }
        }
    }

    /// The first key that is set and that this kind does not take.
    pub(crate) fn without_meaning_for(&self, kind: PublisherKind) -> Option<&'static str> {
        use PublisherKind::{Amqp, Http, Nats, Redis};
        // The kinds that take each key; `kind` itself is every kind's.
        let keys: [(_, _, &[PublisherKind]); _] = [
            ("url", self.url.is_some(), &[Amqp, Http, Nats, Redis]),
            (
                "url_file",
                self.url_file.is_some(),
                &[Amqp, Http, Nats, Redis],
            ),
            (
                "ca_file",
                self.ca_file.is_some(),
                &[Amqp, Http, Nats, Redis],
            ),
            (
                "publish_timeout",
                self.publish_timeout.is_some(),
                &[Amqp, Http, Nats, Redis],
            ),
            (
                "connect_timeout",
                self.connect_timeout.is_some(),
                &[Amqp, Http, Nats, Redis],
            ),
            (
                "encoding",
                self.encoding.is_some(),
                &[Amqp, Http, Nats, Redis],
            ),
            ("source", self.source.is_some(), &[Amqp, Http, Nats, Redis]),
            ("transactional", self.transactional.is_some(), &[Redis]),
            (
                "pipeline_events_max",
                self.pipeline_events_max.is_some(),
                &[Redis],
            ),
            (
                "pipeline_bytes_max",
                self.pipeline_bytes_max.is_some(),
                &[Redis],
            ),
            (
                "stream_entries_max",
                self.stream_entries_max.is_some(),
                &[Redis],
            ),
            ("replicas_min", self.replicas_min.is_some(), &[Redis]),
            ("field_bytes_max", self.field_bytes_max.is_some(), &[Redis]),
            ("credentials_file", self.credentials_file.is_some(), &[Nats]),
            ("nkey_file", self.nkey_file.is_some(), &[Nats]),
            (
                "in_flight_events_max",
                self.in_flight_events_max.is_some(),
                &[Amqp, Nats],
            ),
            (
                "in_flight_bytes_max",
                self.in_flight_bytes_max.is_some(),
                &[Amqp, Nats],
            ),
            (
                "message_bytes_max",
                self.message_bytes_max.is_some(),
                &[Amqp, Nats],
            ),
            ("streams", self.streams.is_some(), &[Nats]),
            (
                "duplicate_window_min",
                self.duplicate_window_min.is_some(),
                &[Nats],
            ),
            ("inbox_prefix", self.inbox_prefix.is_some(), &[Nats]),
            ("domain", self.domain.is_some(), &[Nats]),
            ("secret", self.secret.is_some(), &[Http]),
            ("secret_file", self.secret_file.is_some(), &[Http]),
            (
                "requests_in_flight_max",
                self.requests_in_flight_max.is_some(),
                &[Http],
            ),
            ("heartbeat", self.heartbeat.is_some(), &[Amqp]),
            ("declare_exchange", self.declare_exchange.is_some(), &[Amqp]),
            (
                "declare_exchange_type",
                self.declare_exchange_type.is_some(),
                &[Amqp],
            ),
            ("declare_queue", self.declare_queue.is_some(), &[Amqp]),
            (
                "declare_queue_type",
                self.declare_queue_type.is_some(),
                &[Amqp],
            ),
            (
                "declare_binding_key",
                self.declare_binding_key.is_some(),
                &[Amqp],
            ),
        ];
        keys.into_iter()
            .find_map(|(name, is_set, kinds)| (is_set && !kinds.contains(&kind)).then_some(name))
    }
}

/// `[routes.NAME.retry]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetrySettings {
    pub(crate) base: Option<Span>,
    pub(crate) factor: Option<u32>,
    pub(crate) cap: Option<Span>,
    pub(crate) attempts_max: Option<u32>,
    pub(crate) crashes_max: Option<u32>,
    pub(crate) topic_patience: Option<Span>,
    pub(crate) on_dead: Option<OnDeadSetting>,
}

/// `[[routes.NAME.retry_for]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryForSettings {
    pub(crate) topic: Pattern,
    pub(crate) retry: RetrySettings,
}

/// What a dead event does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnDeadSetting {
    HoldKey,
    Skip,
}

impl From<OnDeadSetting> for OnDead {
    fn from(setting: OnDeadSetting) -> Self {
        match setting {
            OnDeadSetting::HoldKey => Self::HoldKey,
            OnDeadSetting::Skip => Self::Skip,
        }
    }
}

/// `[routes.NAME.breaker]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BreakerSettings {
    pub(crate) base: Option<Span>,
    pub(crate) cap: Option<Span>,
    pub(crate) probe_timeout: Option<Span>,
}

/// `[http]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HttpSettings {
    pub(crate) listen: Option<SocketAddr>,
}

/// `[log]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogSettings {
    pub(crate) format: Option<LogFormat>,
    pub(crate) level: Option<String>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Reads a pattern. What was written stays out of the message: it might be a secret in the wrong
/// place.
fn pattern<E: de::Error>(text: &str) -> Result<TopicPattern, E> {
    text.parse()
        .map_err(|_| E::custom("no topic pattern; write a name, a prefix with * at its end, or *"))
}

/// A topic pattern of the core, read from text.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(pub(crate) TopicPattern);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        pattern(&text).map(Self)
    }
}

/// Names: a list, or, for the environment, text with commas.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "nats"),
    expect(dead_code, reason = "there is no publisher to read it")
)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list(
            deserializer,
            "a list of names, as in [\"ORDERS\", \"USERS\"]",
            |text| Ok(text.to_owned()),
        )
        .map(Self)
    }
}

/// Topic patterns: a list, or, for the environment, text with commas.
#[derive(Debug, Clone)]
pub(crate) struct Topics(pub(crate) Vec<TopicPattern>);

impl<'de> Deserialize<'de> for Topics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a list of topic patterns, as in [\"orders.*\", \"users\"]";
        list(deserializer, expected, pattern).map(Self)
    }
}

/// A list of texts that are read one by one; `read` must not repeat what was written.
fn list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    read: impl Fn(&str) -> Result<T, D::Error>,
) -> Result<Vec<T>, D::Error> {
    struct Visitor(&'static str);
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(text.split(',').map(|part| part.trim().to_owned()).collect())
        }
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut texts = Vec::new();
            while let Some(text) = seq.next_element()? {
                texts.push(text);
            }
            Ok(texts)
        }
    }
    let texts = deserializer.deserialize_any(Visitor(expected))?;
    texts.iter().map(|text| read(text)).collect()
}
