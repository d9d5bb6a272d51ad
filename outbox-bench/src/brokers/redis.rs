//! Redis, with `appendfsync always`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo as _, aio::MultiplexedConnection,
};
use anyhow::Result;
use async_trait::async_trait;
use outbox_core::{Binding, Publisher, StoredEvent};
use outbox_redis::{RedisConfig, RedisPublisher};
use outbox_testkit::servers::{self, Server};

use super::{Broker, Pairs, Window, attributes, in_lanes};

const TOPIC: &str = "bench-redis";

pub(crate) struct Redis {
    server: servers::Redis,
}

impl Redis {
    #[expect(clippy::unused_async, reason = "the others wait")]
    pub(crate) async fn start() -> Result<Self> {
        let server = servers::Redis::start()?;
        Ok(Self { server })
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let settings = AsyncConnectionConfig::new().set_response_timeout(None);
        let info = self.server.url().into_connection_info()?;
        // The driver's default holds back the tail of each pipeline.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(tcp))?;
        let connecting = client.get_multiplexed_async_connection_with_config(&settings);
        Ok(connecting.await?)
    }
}

#[async_trait]
impl Broker for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn topic(&self) -> &'static str {
        TOPIC
    }

    fn publisher(&self, publish_timeout: Duration) -> Result<Arc<dyn Publisher>> {
        let mut config = RedisConfig::new(self.server.url());
        config.publish_timeout = publish_timeout;
        Ok(Arc::new(RedisPublisher::new(config)?))
    }

    async fn clear(&mut self) -> Result<()> {
        let mut connection = self.connect().await?;
        let flush = ::redis::cmd("FLUSHDB");
        Ok(flush.exec_async(&mut connection).await?)
    }

    async fn stored(&self) -> Result<usize> {
        let mut connection = self.connect().await?;
        let mut length = ::redis::cmd("XLEN");
        Ok(length.arg(TOPIC).query_async(&mut connection).await?)
    }

    /// A pipeline of MULTI, the events and EXEC for each batch, one after the other in each lane:
    /// there is no sliding over transactions.
    async fn bare(&self, events: &[StoredEvent], window: Window) -> Result<Duration> {
        let messages: Vec<Pairs> = events.iter().map(fields).collect::<Result<_>>()?;
        let connection = self.connect().await?;
        let started = Instant::now();
        in_lanes(messages, window.lanes, |part| {
            send(connection.clone(), part, window.batch)
        })
        .await?;
        Ok(started.elapsed())
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.server
    }
}

/// The fields of the entry as the publisher writes them.
fn fields(event: &StoredEvent) -> Result<Pairs> {
    let mut fields = vec![("payload".to_owned(), super::payload(event).to_vec())];
    if let Some(key) = &event.key {
        fields.push(("key".to_owned(), key.clone().into()));
    }
    fields.extend(attributes(event, Binding::Kafka)?);
    let headers = serde_json::to_vec(&event.headers.to_json())?;
    fields.push(("headers".to_owned(), headers));
    Ok(fields)
}

async fn send(
    mut connection: MultiplexedConnection,
    entries: Vec<Pairs>,
    batch: usize,
) -> Result<()> {
    for entries in entries.chunks(batch) {
        let mut pipeline = ::redis::pipe();
        pipeline.atomic();
        for fields in entries {
            let bytes = fields.iter().map(|(name, value)| name.len() + value.len());
            let mut command = Cmd::with_capacity(3 + 2 * fields.len(), 32 + bytes.sum::<usize>());
            command.arg("XADD").arg(TOPIC).arg("*");
            for (name, value) in fields {
                command.arg(name).arg(value);
            }
            pipeline.add_command(command);
        }
        // An error of any entry is one here.
        pipeline.exec_async(&mut connection).await?;
    }
    Ok(())
}
