//! What the file and the environment may say. Everything is optional here: what is left out keeps
//! the default of the crate that it configures.

mod list;
mod publisher;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use outbox_core::OnDead;
use serde::Deserialize;

use super::{duration::Span, secret::Secret};
pub(super) use list::{Pattern, Topics};
#[cfg(feature = "kafka")]
pub(crate) use publisher::CompressionName;
pub(super) use publisher::EncodingName;
#[cfg(feature = "amqp")]
pub(crate) use publisher::{ExchangeTypeName, QueueTypeName};
pub(crate) use publisher::{PublisherKind, PublisherSettings};

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
