//! The suite that every publisher passes, with the fault proxy.

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use outbox_core::{Headers, Publisher, StoredEvent};
use outbox_testkit::publisher_suite::{Limited, PublisherGates, PublisherHarness, Received};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    detour::Detour,
    support::{Record, configured, numbers, records, shared, topic, topic_with},
};

struct KafkaHarness {
    detour: Detour,
}

impl KafkaHarness {
    async fn start() -> Self {
        Self {
            detour: Detour::start(shared().parse().unwrap()).await,
        }
    }
}

#[async_trait]
impl PublisherHarness for KafkaHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            size_limit: true,
            exact_headers: true,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        let brokers = match via {
            Some(via) => {
                self.detour.tell(via.port());
                via.to_string()
            }
            None => shared(),
        };
        let publisher = configured(&brokers, |config| {
            config.publish_timeout = deadline;
        });
        if via.is_some() {
            // Short deadlines are for what the tests do, not for a first producer's introduction.
            let events = numbers(&topic(&shared(), "warm").await, 0..1);
            for _ in 0..3 {
                if publisher.publish(&events).await[0].is_delivered() {
                    break;
                }
            }
        }
        Box::new(publisher)
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(self.detour.address())
    }

    async fn topic(&self) -> String {
        topic(&shared(), "suite").await
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        // Names that are none would be refused by the client that reads.
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if topic.is_empty() || topic.len() > 249 || !topic.chars().all(legal) {
            return Vec::new();
        }
        records(&shared(), topic)
            .await
            .iter()
            .map(received)
            .collect()
    }

    /// Idempotent producers do.
    fn repairs_cuts(&self) -> bool {
        true
    }

    /// Records must be no older than they are, which none is when it arrives.
    async fn refusing_topic(&self) -> Option<String> {
        let settings = [("message.timestamp.before.max.ms", "0")];
        Some(topic_with(&shared(), "refusing", &settings).await)
    }

    async fn limited(&self) -> Option<Limited> {
        Some(Limited {
            publisher: Box::new(configured(&shared(), |_| ())),
            message_len,
        })
    }
}

/// Counted anew, from Kafka's description of its record batches: 61 bytes, then the record behind
/// its length, with lengths as zigzag varints.
fn message_len(event: &StoredEvent) -> usize {
    fn varint(length: usize) -> usize {
        let mut zigzag = length * 2;
        let mut bytes = 1;
        while zigzag >= 128 {
            zigzag /= 128;
            bytes += 1;
        }
        bytes
    }
    let field = |length: usize| varint(length) + length;
    let header = |name: &str, value: usize| field(name.len()) + field(value);
    let created_at = event.created_at.format(&Rfc3339).unwrap();
    let mut count = 4;
    let mut headers = header("event-id", 36)
        + header("event-type", event.event_type.len())
        + header("event-version", event.event_version.to_string().len())
        + header("created-at", created_at.len());
    for (name, value) in [
        ("aggregate-type", &event.aggregate_type),
        ("aggregate-id", &event.aggregate_id),
        ("content-type", &event.content_type),
    ] {
        if let Some(value) = value {
            count += 1;
            headers += header(name, value.len());
        }
    }
    for (name, value) in event.headers.iter() {
        count += 1;
        headers += header(name, value.len());
    }
    let key = event.key.as_ref().map_or(1, |key| field(key.len()));
    let payload = event
        .payload
        .as_ref()
        .map_or(1, |payload| field(payload.len()));
    let body = 3 + key + payload + varint(count) + headers;
    61 + varint(body) + body
}

/// Maps a record back as docs.md tells.
fn received(record: &Record) -> Received {
    const OURS: [&str; 7] = [
        "event-id",
        "event-type",
        "event-version",
        "aggregate-type",
        "aggregate-id",
        "content-type",
        "created-at",
    ];
    let text = |name| record.header(name).map(ToOwned::to_owned);
    let key = record
        .key
        .clone()
        .map(|key| String::from_utf8(key).unwrap());
    let users = record
        .headers
        .iter()
        .filter(|(name, _)| !OURS.contains(&name.as_str()));
    Received {
        id: record.header("event-id").unwrap().parse().unwrap(),
        key,
        payload: record.payload.clone(),
        event_type: text("event-type").unwrap(),
        event_version: record.header("event-version").unwrap().parse().unwrap(),
        aggregate_type: text("aggregate-type"),
        aggregate_id: text("aggregate-id"),
        content_type: text("content-type"),
        headers: users.cloned().collect::<Headers>(),
        created_at: OffsetDateTime::parse(record.header("created-at").unwrap(), &Rfc3339).unwrap(),
    }
}

outbox_testkit::publisher_suite!(KafkaHarness::start().await);
