//! The suite that every publisher passes, with the fault proxy, on a real Redis.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use custom_publisher::ListPublisher;
use outbox_core::{Headers, Publisher};
use outbox_testkit::{
    publisher_suite::{PublisherGates, PublisherHarness, Received},
    servers::Redis,
};
use redis::{
    AsyncTypedCommands as _, Client,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

struct ListHarness {
    server: Redis,
    topics: AtomicUsize,
}

impl ListHarness {
    fn start() -> Self {
        Self {
            server: Redis::start().unwrap(),
            topics: AtomicUsize::new(0),
        }
    }

    fn unique(&self) -> String {
        format!("list-{}", self.topics.fetch_add(1, Ordering::Relaxed))
    }
}

#[async_trait]
impl PublisherHarness for ListHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            size_limit: false,
            exact_headers: true,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        let address = via.unwrap_or_else(|| self.server.address());
        let client = Client::open(format!("redis://{address}")).unwrap();
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(deadline))
            .set_response_timeout(Some(deadline));
        let redis = ConnectionManager::new_lazy_with_config(client, config).unwrap();
        Box::new(ListPublisher { redis, deadline })
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(self.server.address())
    }

    async fn topic(&self) -> String {
        self.unique()
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        let client = Client::open(self.server.url()).unwrap();
        let mut redis = client.get_multiplexed_async_connection().await.unwrap();
        let elements = redis.lrange(topic, 0, -1).await.unwrap();
        elements.iter().map(|element| received(element)).collect()
    }

    /// A string where the list should be.
    async fn refusing_topic(&self) -> Option<String> {
        let topic = self.unique();
        let client = Client::open(self.server.url()).unwrap();
        let mut redis = client.get_multiplexed_async_connection().await.unwrap();
        redis.set(&topic, "text").await.unwrap();
        Some(topic)
    }
}

fn received(element: &str) -> Received {
    let json: Value = serde_json::from_str(element).unwrap();
    let text = |name: &str| json[name].as_str().map(ToOwned::to_owned);
    let bytes = |text: &str| Bytes::from(STANDARD.decode(text).unwrap());
    Received {
        id: text("event-id").unwrap().parse().unwrap(),
        key: text("key"),
        payload: json["payload"].as_str().map(bytes),
        event_type: text("event-type").unwrap(),
        event_version: text("event-version").unwrap().parse().unwrap(),
        aggregate_type: text("aggregate-type"),
        aggregate_id: text("aggregate-id"),
        content_type: text("content-type"),
        headers: Headers::from_json(&json["headers"]).unwrap(),
        created_at: OffsetDateTime::parse(&text("created-at").unwrap(), &Rfc3339).unwrap(),
    }
}

mod lists {
    outbox_testkit::publisher_suite!(super::ListHarness::start());
}

#[test]
fn readme_shows_this_code_which_is_short() {
    let source = include_str!("../src/publisher.rs");
    let (_, shown) = source.split_once("\n\n").unwrap();
    assert!(include_str!("../../../README.md").contains(shown));
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    let lines = source.lines().map(str::trim).filter(is_code).count();
    assert!(lines < 60, "{lines}");
}
