//! The suite that every publisher passes, with the fault proxy.

use std::{net::SocketAddr, time::Duration};

use async_nats::jetstream::stream::DiscardPolicy;
use async_trait::async_trait;
use outbox_core::{Headers, Publisher, StoredEvent};
use outbox_testkit::{
    publisher_suite::{Limited, PublisherGates, PublisherHarness, Received},
    servers::Nats,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::support::{
    Stored, all_delivered, configured, decode, messages, numbered, publisher, stream, stream_with,
    unique,
};

const STREAM: &str = "SUITE";

struct NatsHarness {
    server: Nats,
}

impl NatsHarness {
    async fn start() -> Self {
        let server = Nats::start().unwrap();
        stream(&server.url(), STREAM, "suite.>").await;
        Self { server }
    }
}

#[async_trait]
impl PublisherHarness for NatsHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            size_limit: true,
            // The driver keeps no order between names.
            exact_headers: false,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        let url = via.map_or_else(|| self.server.url(), |address| format!("nats://{address}"));
        Box::new(configured(&url, |config| config.publish_timeout = deadline))
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(self.server.address())
    }

    async fn topic(&self) -> String {
        unique("suite.t")
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        let stored = messages(&self.server.url(), STREAM, topic).await;
        stored.iter().map(received).collect()
    }

    async fn refusing_topic(&self) -> Option<String> {
        let (name, url) = (unique("full"), self.server.url());
        stream_with(&url, &name, &name, |config| {
            config.max_messages = 1;
            config.discard = DiscardPolicy::New;
        })
        .await;
        all_delivered(&publisher(&url).publish(&[numbered(&name, 0)]).await);
        Some(name)
    }

    async fn limited(&self) -> Option<Limited> {
        let publisher = publisher(&self.server.url());
        // The limit is the server's, and known from the first connection on.
        publisher.check().await.unwrap();
        Some(Limited {
            publisher: Box::new(publisher),
            message_len,
        })
    }
}

/// As docs.md tells: `NATS/1.0` with two line ends, four bytes around each name and value.
fn message_len(event: &StoredEvent) -> usize {
    let created_at = event.created_at.to_offset(time::UtcOffset::UTC);
    let fields = [
        ("Nats-Msg-Id", Some(event.id.to_string())),
        (
            "Outbox-Null",
            event.payload.is_none().then(|| "1".to_owned()),
        ),
        ("Outbox-Key", event.key.clone()),
        ("event-id", Some(event.id.to_string())),
        ("event-type", Some(event.event_type.clone())),
        ("event-version", Some(event.event_version.to_string())),
        ("aggregate-type", event.aggregate_type.clone()),
        ("aggregate-id", event.aggregate_id.clone()),
        ("content-type", event.content_type.clone()),
        ("created-at", created_at.format(&Rfc3339).ok()),
    ];
    let fields = fields
        .iter()
        .filter_map(|(name, value)| Some(name.len() + value.as_ref()?.len() + 4));
    12 + fields.sum::<usize>() + event.payload.as_ref().map_or(0, bytes::Bytes::len)
}

/// Maps a message back as docs.md tells.
fn received(stored: &Stored) -> Received {
    let id = stored.text("event-id").unwrap();
    assert_eq!(stored.text("Nats-Msg-Id"), Some(id.clone()));
    let own = |name: &str| {
        let own = [
            "Nats-Msg-Id",
            "Outbox-Key",
            "Outbox-Null",
            "content-type",
            "created-at",
        ];
        own.contains(&name) || name.starts_with("event-") || name.starts_with("aggregate-")
    };
    let mut headers = Headers::new();
    for (name, values) in stored.headers.iter() {
        let name: &str = name.as_ref();
        for value in values.iter().filter(|_| !own(name)) {
            headers.push(name, decode(value.as_str()));
        }
    }
    Received {
        id: id.parse().unwrap(),
        key: stored.text("Outbox-Key"),
        payload: stored
            .text("Outbox-Null")
            .is_none()
            .then(|| stored.payload.clone()),
        event_type: stored.text("event-type").unwrap(),
        event_version: stored.text("event-version").unwrap().parse().unwrap(),
        aggregate_type: stored.text("aggregate-type"),
        aggregate_id: stored.text("aggregate-id"),
        content_type: stored.text("content-type"),
        headers,
        created_at: OffsetDateTime::parse(&stored.text("created-at").unwrap(), &Rfc3339).unwrap(),
    }
}

outbox_testkit::publisher_suite!(NatsHarness::start().await);
