//! NATS with one stream in files.

use std::{
    collections::VecDeque,
    future::IntoFuture as _,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use async_nats::{
    HeaderMap, HeaderName, HeaderValue,
    jetstream::{
        self, Context,
        context::PublishAckFuture,
        stream::{self, StorageType},
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Binding, Publisher, StoredEvent};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::servers::{self, Server};

use super::{Broker, Pairs, Window, in_lanes, pairs, payload};

const TOPIC: &str = "bench.nats";
const STREAM: &str = "BENCH";

pub(crate) struct Nats {
    server: servers::Nats,
}

struct Message {
    headers: Pairs,
    payload: Bytes,
}

impl Nats {
    pub(crate) async fn start() -> Result<Self> {
        let server = servers::Nats::start()?;
        let mut nats = Self { server };
        nats.clear().await?;
        Ok(nats)
    }

    async fn connect(&self) -> Result<Context> {
        Ok(jetstream::new(
            async_nats::connect(self.server.url()).await?,
        ))
    }
}

#[async_trait]
impl Broker for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn topic(&self) -> &'static str {
        TOPIC
    }

    fn publisher(&self, publish_timeout: Duration) -> Result<Arc<dyn Publisher>> {
        let mut config = NatsConfig::new(self.server.url());
        config.publish_timeout = publish_timeout;
        Ok(Arc::new(NatsPublisher::new(config)?))
    }

    /// Makes the stream anew: it would remember ids of messages beyond a purge.
    async fn clear(&mut self) -> Result<()> {
        let jetstream = self.connect().await?;
        if jetstream.get_stream(STREAM).await.is_ok() {
            jetstream.delete_stream(STREAM).await?;
        }
        let config = stream::Config {
            name: STREAM.to_owned(),
            subjects: vec![TOPIC.to_owned()],
            storage: StorageType::File,
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await?;
        Ok(())
    }

    async fn stored(&self) -> Result<usize> {
        let jetstream = self.connect().await?;
        let stream = jetstream.get_stream(STREAM).await?;
        Ok(usize::try_from(stream.cached_info().state.messages)?)
    }

    async fn bare(&self, events: &[StoredEvent], window: Window) -> Result<Duration> {
        let messages: Vec<Message> = events.iter().map(message).collect::<Result<_>>()?;
        let jetstream = self.connect().await?;
        let started = Instant::now();
        in_lanes(messages, window.lanes, |part| {
            send(jetstream.clone(), part, window.batch)
        })
        .await?;
        Ok(started.elapsed())
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.server
    }
}

/// The message as the publisher writes it.
fn message(event: &StoredEvent) -> Result<Message> {
    let mut headers = vec![("Nats-Msg-Id".to_owned(), event.id.to_string().into())];
    if let Some(key) = &event.key {
        headers.push(("Outbox-Key".to_owned(), key.clone().into()));
    }
    headers.extend(pairs(event, Binding::Http)?);
    let payload = payload(event);
    Ok(Message { headers, payload })
}

async fn send(jetstream: Context, messages: Vec<Message>, window: usize) -> Result<()> {
    let mut in_flight = VecDeque::<PublishAckFuture>::with_capacity(window);
    for message in messages {
        if in_flight.len() == window
            && let Some(first) = in_flight.pop_front()
        {
            first.into_future().await?;
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &message.headers {
            let name: HeaderName = name.parse().context("a header's name")?;
            let value: HeaderValue = std::str::from_utf8(value)?.parse()?;
            headers.append(name, value);
        }
        let sent = jetstream.publish_with_headers(TOPIC, headers, message.payload);
        in_flight.push_back(sent.await?);
    }
    for answer in in_flight {
        answer.into_future().await?;
    }
    Ok(())
}
