//! Private brokers that a benchmark publishes to, and may pause, stop and start.

mod amqp;
mod kafka;
mod nats;
mod redis;

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use outbox_core::{Binding, Encoding, Publisher, StoredEvent};
use outbox_testkit::servers::Server;
use serde::Serialize;

pub(crate) use amqp::Amqp;
pub(crate) use kafka::Kafka;
pub(crate) use nats::Nats;
pub(crate) use redis::Redis;

/// The publishers' usual deadline of a call.
pub(crate) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// How much is under way at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Batches, each by a task of its own, as a relay's lanes.
    pub(crate) lanes: usize,
    /// Events of a batch.
    pub(crate) batch: usize,
}

/// How fast another client was on the same broker.
#[derive(Serialize)]
pub(crate) struct Other {
    pub(crate) client: &'static str,
    pub(crate) events_per_second: f64,
}

/// A broker with one topic, which is there from the start.
#[async_trait]
pub(crate) trait Broker: Send + Sync {
    fn name(&self) -> &'static str;

    /// The topic that events go to.
    fn topic(&self) -> &'static str;

    /// A publisher with the usual settings and this deadline of a call.
    fn publisher(&self, publish_timeout: Duration) -> Result<Arc<dyn Publisher>>;

    /// Empties the topic.
    async fn clear(&mut self) -> Result<()>;

    /// How many events the topic got since it was emptied.
    async fn stored(&self) -> Result<usize>;

    /// Publishes the events by the bare driver, acknowledged, with the publisher's settings and the
    /// same bytes on the wire, and returns how long that took. In each lane a window of as many
    /// events as a batch has slides over its part. What goes on the wire is written down before.
    async fn bare(&self, events: &[StoredEvent], window: Window) -> Result<Duration>;

    /// What the publisher has under way, a row each; `usual` is a relay's. The bar is for the last,
    /// where the bare driver has as much.
    fn windows(&self, usual: Window) -> Vec<Window> {
        vec![usual]
    }

    /// Runs clients in other languages, so that they can be printed beside. Once each: a start
    /// of theirs takes long.
    async fn others(&mut self, _events: usize) -> Result<Vec<Other>> {
        Ok(Vec::new())
    }

    fn server(&mut self) -> &mut dyn Server;
}

/// The names of all, in the order in which they are measured.
pub(crate) const NAMES: [&str; 4] = ["kafka", "nats", "amqp", "redis"];

/// Starts the broker of this name.
pub(crate) async fn start(name: &str) -> Result<Box<dyn Broker>> {
    eprintln!("{name}: starting a server");
    Ok(match name {
        "kafka" => Box::new(Kafka::start().await?),
        "nats" => Box::new(Nats::start().await?),
        "amqp" => Box::new(Amqp::start().await?),
        "redis" => Box::new(Redis::start().await?),
        _ => anyhow::bail!("no broker is named {name}: {}", NAMES.join(", ")),
    })
}

/// The names, each known and none twice.
pub(crate) fn check_names(names: &[String]) -> Result<()> {
    for (index, name) in names.iter().enumerate() {
        ensure!(
            NAMES.contains(&name.as_str()) && !names[..index].contains(name),
            "{name} is not one of {}, or there twice",
            NAMES.join(", ")
        );
    }
    Ok(())
}

/// Names and values, as they go on the wire.
type Pairs = Vec<(String, Vec<u8>)>;

/// The attributes of an event.
fn attributes(event: &StoredEvent, binding: Binding) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    Encoding::Plain.attributes(event, binding, |_, name, value| {
        pairs.push((name.to_owned(), value.into()));
    })?;
    Ok(pairs)
}

/// Its own headers.
fn headers(event: &StoredEvent) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    let own = event.headers.iter();
    own.map(|(name, value)| (name.to_owned(), value.to_vec()))
}

/// The attributes of an event and then its own headers.
fn pairs(event: &StoredEvent, binding: Binding) -> Result<Pairs> {
    let mut pairs = attributes(event, binding)?;
    pairs.extend(headers(event));
    Ok(pairs)
}

fn payload(event: &StoredEvent) -> bytes::Bytes {
    event.payload.clone().unwrap_or_default()
}

/// Gives each lane its part of the messages and waits for all.
async fn in_lanes<M, F>(
    messages: Vec<M>,
    lanes: usize,
    mut lane: impl FnMut(Vec<M>) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut rest = messages;
    let part = rest.len().div_ceil(lanes.max(1));
    let mut work = Vec::new();
    while !rest.is_empty() {
        let behind = rest.split_off(part.min(rest.len()));
        work.push(tokio::spawn(lane(std::mem::replace(&mut rest, behind))));
    }
    for lane in futures::future::join_all(work).await {
        lane??;
    }
    Ok(())
}
