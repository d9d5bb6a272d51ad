//! The suite that every publisher passes, with the fault proxy; in both modes of sending.

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Headers, Publisher, StoredEvent};
use outbox_redis::RedisConfig;
use outbox_testkit::{
    publisher_suite::{Limited, PublisherGates, PublisherHarness, Received},
    servers::Redis,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::support::{Entry, configured, connection, entries, run, unique};

/// The least that Redis allows.
const FIELD_BYTES_MAX: &str = "1mb";

struct RedisHarness {
    server: Redis,
    transactional: bool,
}

impl RedisHarness {
    fn start(transactional: bool) -> Self {
        let server = Redis::start_with(&["--proto-max-bulk-len", FIELD_BYTES_MAX]).unwrap();
        Self {
            server,
            transactional,
        }
    }

    fn made(&self, url: &str, set: impl FnOnce(&mut RedisConfig)) -> Box<dyn Publisher> {
        Box::new(configured(url, |config| {
            config.transactional = self.transactional;
            set(config);
        }))
    }
}

#[async_trait]
impl PublisherHarness for RedisHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            size_limit: true,
            exact_headers: true,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        let url = via.map_or_else(|| self.server.url(), |address| format!("redis://{address}"));
        self.made(&url, |config| config.publish_timeout = deadline)
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(self.server.address())
    }

    async fn topic(&self) -> String {
        unique("suite")
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        let stored = entries(&mut connection(&self.server.url()).await, topic).await;
        stored.iter().map(received).collect()
    }

    async fn refusing_topic(&self) -> Option<String> {
        let topic = unique("taken");
        let mut connection = connection(&self.server.url()).await;
        run(&mut connection, &format!("SET {topic} text")).await;
        Some(topic)
    }

    async fn limited(&self) -> Option<Limited> {
        let publisher = self.made(&self.server.url(), |_| ());
        // The limit is the server's, and known from the first connection on.
        publisher.check().await.unwrap();
        Some(Limited {
            publisher,
            message_len: |event: &StoredEvent| event.payload.as_ref().map_or(0, Bytes::len),
        })
    }
}

/// Maps an entry back as docs.md tells.
fn received(entry: &Entry) -> Received {
    let text = |field| entry.text(field).map(ToOwned::to_owned);
    let payload = Bytes::copy_from_slice(entry.bytes("payload").unwrap());
    let headers = entry.text("headers").map_or_else(Headers::new, |json| {
        Headers::from_json(&serde_json::from_str(json).unwrap()).unwrap()
    });
    Received {
        id: entry.text("event-id").unwrap().parse().unwrap(),
        key: text("key"),
        payload: entry.bytes("outbox-null").is_none().then_some(payload),
        event_type: text("event-type").unwrap(),
        event_version: text("event-version").unwrap().parse().unwrap(),
        aggregate_type: text("aggregate-type"),
        aggregate_id: text("aggregate-id"),
        content_type: text("content-type"),
        headers,
        created_at: OffsetDateTime::parse(entry.text("created-at").unwrap(), &Rfc3339).unwrap(),
    }
}

mod transactions {
    outbox_testkit::publisher_suite!(super::RedisHarness::start(true));
}

mod single_commands {
    outbox_testkit::publisher_suite!(super::RedisHarness::start(false));
}
