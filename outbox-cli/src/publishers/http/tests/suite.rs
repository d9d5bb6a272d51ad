//! The suite that every publisher passes, with the fault proxy.

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{Headers, Publisher};
use outbox_testkit::publisher_suite::{PublisherGates, PublisherHarness, Received};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::{Arrived, Reply, Server, configured};

/// The headers that are not the user's.
const OWN: [&str; 13] = [
    "host",
    "accept",
    "user-agent",
    "content-length",
    "content-type",
    "event-id",
    "event-type",
    "event-version",
    "aggregate-type",
    "aggregate-id",
    "created-at",
    "outbox-key",
    "outbox-topic",
];

struct HttpHarness(Server);

impl HttpHarness {
    async fn start() -> Self {
        let server = Server::start(|arrived| {
            let topic = arrived.decoded("outbox-topic").unwrap();
            Reply::Status(if topic.starts_with("refuse") {
                422
            } else {
                200
            })
        });
        Self(server.await)
    }
}

#[async_trait]
impl PublisherHarness for HttpHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            // How much a server takes is its own affair.
            size_limit: false,
            // The order of different names is not kept.
            exact_headers: false,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        let url = format!("http://{}/hook", via.unwrap_or(self.0.address));
        Box::new(configured(&url, |config| config.publish_timeout = deadline))
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(self.0.address)
    }

    async fn topic(&self) -> String {
        format!("topic-{}", Uuid::new_v4())
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        let arrived = self.0.arrived();
        let of_topic = |it: &&Arrived| it.decoded("outbox-topic").unwrap() == topic;
        arrived.iter().filter(of_topic).map(received).collect()
    }

    async fn refusing_topic(&self) -> Option<String> {
        Some(format!("refuse-{}", Uuid::new_v4()))
    }
}

/// Maps a request back as docs.md tells.
fn received(arrived: &Arrived) -> Received {
    let users = arrived.headers.iter();
    let users = users.filter(|(name, _)| !OWN.contains(&name.as_str()) && *name != "outbox-null");
    let headers: Headers = users
        .map(|(name, value)| (name.as_str(), user_value(value.as_bytes())))
        .collect();
    let decoded = |name| arrived.decoded(name);
    Received {
        id: decoded("event-id").unwrap().parse().unwrap(),
        key: decoded("outbox-key"),
        payload: decoded("outbox-null")
            .is_none()
            .then(|| arrived.body.clone()),
        event_type: decoded("event-type").unwrap(),
        event_version: decoded("event-version").unwrap().parse().unwrap(),
        aggregate_type: decoded("aggregate-type"),
        aggregate_id: decoded("aggregate-id"),
        content_type: arrived.text("content-type").map(ToOwned::to_owned),
        headers,
        created_at: OffsetDateTime::parse(&decoded("created-at").unwrap(), &Rfc3339).unwrap(),
    }
}

/// A byte sequence of RFC 9651, or text.
fn user_value(value: &[u8]) -> Vec<u8> {
    let inner = value
        .strip_prefix(b":")
        .and_then(|rest| rest.strip_suffix(b":"));
    inner.map_or_else(|| value.to_vec(), |inner| STANDARD.decode(inner).unwrap())
}

outbox_testkit::publisher_suite!(HttpHarness::start().await);
