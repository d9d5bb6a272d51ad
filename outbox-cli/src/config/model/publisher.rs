//! `[routes.NAME.publisher]`: the keys of every kind of publisher.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use super::list::Names;
use crate::config::{duration::Span, secret::Secret};

/// Which publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PublisherKind {
    /// RabbitMQ: a topic is exchange/routing.key, or a queue.
    Amqp,
    /// Webhooks: one POST an event.
    Http,
    /// Kafka: an event is a record of the topic.
    Kafka,
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
            Self::Kafka => "kafka",
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
            "kafka" => Some(Self::Kafka),
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
            Self::Kafka => Some("kafka://host:9092,other:9092"),
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

/// How Kafka's batches of records are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CompressionName {
    None,
    Lz4,
    Snappy,
    Gzip,
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
    pub(crate) producers_max: Option<usize>,
    pub(crate) batch_bytes_max: Option<usize>,
    pub(crate) compression: Option<CompressionName>,
    /// Of librdkafka: lines of `name=value`, some of which are passwords.
    pub(crate) properties: Option<Secret>,
    pub(crate) properties_file: Option<PathBuf>,
}

impl PublisherSettings {
    /// Sets those that are written.
    #[cfg_attr(
        not(any(
            feature = "amqp",
            feature = "http",
            feature = "kafka",
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

    /// The first key that is set and that this kind does not take; `kind` itself is every kind's.
    pub(crate) fn without_meaning_for(&self, kind: PublisherKind) -> Option<&'static str> {
        use PublisherKind::{Amqp, Http, Kafka, Nats, Redis};
        macro_rules! only_for {
            ($kinds:expr; $($key:ident)+) => {
                $(if self.$key.is_some() && !$kinds.contains(&kind) {
                    return Some(stringify!($key));
                })+
            };
        }
        only_for!([Amqp, Http, Kafka, Nats, Redis];
            url url_file publish_timeout connect_timeout encoding source);
        only_for!([Amqp, Http, Nats, Redis]; ca_file);
        only_for!([Amqp, Kafka, Nats];
            in_flight_events_max in_flight_bytes_max message_bytes_max);
        only_for!([Amqp];
            heartbeat declare_exchange declare_exchange_type declare_queue declare_queue_type
            declare_binding_key);
        only_for!([Http]; secret secret_file requests_in_flight_max);
        only_for!([Kafka];
            producers_max batch_bytes_max compression properties properties_file);
        only_for!([Nats];
            credentials_file nkey_file streams duplicate_window_min inbox_prefix domain);
        only_for!([Redis];
            transactional pipeline_events_max pipeline_bytes_max stream_entries_max replicas_min
            field_bytes_max);
        None
    }
}
