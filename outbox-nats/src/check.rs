//! Whether the publisher can work, and what endangers events without forbidding anything.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outbox_core::Result;
use serde::{Deserialize, de::IgnoredAny};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    config::NatsConfig,
    connection::{Connector, Link},
    error,
    request::{Reply, ask},
};

const CHECK: &str = "check NATS";
/// Streams that are known by having taken an event.
const STREAMS_MAX: usize = 100;

/// What JetStream tells of a stream; only what is looked at.
#[derive(Debug, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) config: StreamConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamConfig {
    pub(crate) no_ack: bool,
    sealed: bool,
    storage: String,
    /// In nanoseconds.
    duplicate_window: u64,
    /// -1 for none of its own.
    max_msg_size: i64,
}

impl StreamInfo {
    pub(crate) async fn ask(link: &Link, config: &NatsConfig, name: &str) -> Result<Reply<Self>> {
        let question = format!("STREAM.INFO.{name}");
        let (domain, limit) = (config.domain.as_deref(), config.connect_timeout);
        ask(link, domain, &question, String::new(), limit, CHECK).await
    }
}

impl StreamConfig {
    /// One line for each risk.
    fn risks(&self, duplicate_window_min: Duration, message_bytes_max: usize) -> Vec<String> {
        let mut risks = Vec::new();
        if self.no_ack {
            risks.push("it acknowledges nothing (no_ack): no event is ever delivered".to_owned());
        }
        if self.sealed {
            risks.push("it is sealed and takes no event".to_owned());
        }
        if self.storage == "memory" {
            risks.push(
                "it is kept in memory: acknowledged events are lost when the server ends"
                    .to_owned(),
            );
        }
        let window = Duration::from_nanos(self.duplicate_window);
        if window < duplicate_window_min {
            risks.push(format!(
                "its duplicate window of {} is shorter than {} (duplicate_window_min): an event whose \
                 answer was lost may be stored twice",
                humantime::format_duration(window),
                humantime::format_duration(duplicate_window_min),
            ));
        }
        match usize::try_from(self.max_msg_size) {
            Ok(limit) if limit < message_bytes_max => risks.push(format!(
                "its max_msg_size of {limit} is below what is sent ({message_bytes_max}): set \
                 message_bytes_max, so that an event above it is found before it is sent"
            )),
            _ => {}
        }
        risks
    }
}

/// Asks the server; writes nothing.
pub(crate) async fn check(
    connector: &Connector,
    config: &NatsConfig,
    streams: &Streams,
) -> Result<()> {
    let link = connector.link().await?;
    let checked = jetstream(&link, config).await;
    if checked.is_err() {
        // The next one may meet another server, or a mended one.
        connector.discard(link.generation);
        return checked;
    }
    let seen = streams.seen().clone();
    let named = config.streams.iter().cloned();
    for name in named.chain(seen).collect::<BTreeSet<_>>() {
        look(connector, &link, config, &name).await;
    }
    Ok(())
}

/// Whether there is a JetStream for this account. A user who may not ask is believed.
async fn jetstream(link: &Link, config: &NatsConfig) -> Result<()> {
    let (domain, limit) = (config.domain.as_deref(), config.connect_timeout);
    let info = ask::<IgnoredAny>(link, domain, "INFO", String::new(), limit, CHECK).await?;
    match info {
        Reply::Is(_) | Reply::NotPermitted => Ok(()),
        Reply::NoResponders => Err(error::no_jetstream(CHECK)),
        Reply::Refused(refusal) => Err(refusal.error(CHECK)),
    }
}

/// Warns of what is wrong with a stream. A missing one is its topics' fault and no reason not to
/// start.
async fn look(connector: &Connector, link: &Link, config: &NatsConfig, name: &str) {
    let risks = match StreamInfo::ask(link, config, name).await {
        Ok(Reply::Is(info)) => info
            .config
            .risks(config.duplicate_window_min, connector.message_bytes_max()),
        Ok(Reply::Refused(refusal)) => {
            vec![refusal.error(CHECK).to_string()]
        }
        // Nothing is known of it then.
        Ok(Reply::NotPermitted | Reply::NoResponders) | Err(_) => vec![],
    };
    for risk in risks {
        warn!(stream = %name, "{risk}");
    }
}

/// The streams that have taken an event.
#[derive(Default)]
pub(crate) struct Streams(Mutex<BTreeSet<String>>);

impl Streams {
    /// Looks at a stream when it is seen for the first time, beside the call.
    pub(crate) fn note(
        &self,
        name: &str,
        connector: &Arc<Connector>,
        config: &NatsConfig,
        ended: &CancellationToken,
    ) {
        let mut seen = self.seen();
        if seen.contains(name) || seen.len() >= STREAMS_MAX {
            return;
        }
        seen.insert(name.to_owned());
        drop(seen);
        let (connector, config, name) = (Arc::clone(connector), config.clone(), name.to_owned());
        let looking = async move {
            if let Ok(link) = connector.link().await {
                look(&connector, &link, &config, &name).await;
            }
        };
        tokio::spawn(ended.clone().run_until_cancelled_owned(looking));
    }

    fn seen(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_risk_is_told() {
        let read = |json: &str| serde_json::from_str::<StreamInfo>(json).unwrap().config;
        let good = r#"{"config":{"name":"S","storage":"file","duplicate_window":300000000000,"max_msg_size":-1}}"#;
        let five = Duration::from_secs(300);
        assert!(read(good).risks(five, 1 << 20).is_empty());
        for (part, with, told) in [
            (
                "300000000000",
                "120000000000",
                "duplicate window of 2m is shorter than 5m",
            ),
            ("file", "memory", "kept in memory"),
            (":-1", ":4096", "max_msg_size of 4096"),
            (":-1", ":-1,\"no_ack\":true", "acknowledges nothing"),
            (":-1", ":-1,\"sealed\":true", "sealed"),
        ] {
            let risks = read(&good.replace(part, with)).risks(five, 1 << 20);
            assert_eq!(risks.len(), 1, "{risks:?}");
            assert!(risks[0].contains(told), "{risks:?}");
        }
        assert!(
            read(&good.replace(":-1", ":4096"))
                .risks(five, 4096)
                .is_empty()
        );
    }
}
