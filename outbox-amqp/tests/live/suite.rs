//! The suite that every publisher passes, with the fault proxy; on classic and on quorum queues.

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_amqp::AmqpConfig;
use outbox_core::{Headers, Publisher, StoredEvent};
use outbox_testkit::publisher_suite::{Limited, PublisherGates, PublisherHarness, Received};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::Mutex;

use crate::support::{Client, Message, address, configured, shared_url, unique};

const PAYLOAD_BYTES_MAX: usize = 200_000;
/// Headers that are the event's own fields, and what a quorum queue adds to what was read before.
const OWN: [&str; 7] = [
    "x-delivery-count",
    "created-at",
    "event-version",
    "outbox-key",
    "aggregate-type",
    "aggregate-id",
    "outbox-null",
];

struct AmqpHarness {
    client: Client,
    queue_type: &'static str,
    queues: Mutex<Vec<String>>,
}

impl AmqpHarness {
    async fn start(queue_type: &'static str) -> Self {
        Self {
            client: Client::connect(&shared_url()).await,
            queue_type,
            queues: Mutex::default(),
        }
    }

    fn made(via: SocketAddr, set: impl FnOnce(&mut AmqpConfig)) -> Box<dyn Publisher> {
        Box::new(configured(&format!("amqp://{via}/%2f"), set))
    }
}

#[async_trait]
impl PublisherHarness for AmqpHarness {
    fn gates(&self) -> PublisherGates {
        PublisherGates {
            proxy: true,
            refusing_topic: true,
            size_limit: true,
            exact_headers: false,
        }
    }

    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher> {
        let via = via.unwrap_or_else(address);
        Self::made(via, |config| config.publish_timeout = deadline)
    }

    fn broker(&self) -> Option<SocketAddr> {
        Some(address())
    }

    async fn topic(&self) -> String {
        let name = unique("suite");
        let kind = [("x-queue-type", self.queue_type)];
        self.client.queue(&name, &kind).await;
        self.queues.lock().await.push(name.clone());
        name
    }

    async fn consume(&self, topic: &str) -> Vec<Received> {
        let messages = self.client.messages(topic).await;
        messages.iter().map(received).collect()
    }

    /// No queue of that name: the server takes the message, returns it, and confirms it.
    async fn refusing_topic(&self) -> Option<String> {
        Some(unique("unroutable"))
    }

    async fn limited(&self) -> Option<Limited> {
        Some(Limited {
            publisher: Self::made(address(), |config| {
                config.message_bytes_max = PAYLOAD_BYTES_MAX;
            }),
            message_len: |event: &StoredEvent| event.payload.as_ref().map_or(0, Bytes::len),
        })
    }

    async fn destroy(&self) {
        for queue in self.queues.lock().await.drain(..) {
            self.client.delete_queue(&queue).await;
        }
    }
}

/// Maps a message back as docs.md tells.
fn received(message: &Message) -> Received {
    let properties = &message.properties;
    let short = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    let names = properties.headers().as_ref().unwrap().inner().keys();
    let own = |name: &&str| !OWN.contains(name);
    let headers: Headers = names
        .map(lapin::types::ShortString::as_str)
        .filter(own)
        .map(|name| (name, message.header(name).unwrap()))
        .collect();
    let payload = Bytes::copy_from_slice(&message.body);
    let created_at = message.text("created-at").unwrap();
    let created_at = OffsetDateTime::parse(&created_at, &Rfc3339).unwrap();
    let seconds = u64::try_from(created_at.unix_timestamp()).unwrap();
    assert_eq!(*properties.timestamp(), Some(seconds));
    assert_eq!(*properties.delivery_mode(), Some(2));
    Received {
        id: short(properties.message_id()).unwrap().parse().unwrap(),
        key: message.text("outbox-key"),
        payload: message.text("outbox-null").is_none().then_some(payload),
        event_type: short(properties.kind()).unwrap(),
        event_version: message.text("event-version").unwrap().parse().unwrap(),
        aggregate_type: message.text("aggregate-type"),
        aggregate_id: message.text("aggregate-id"),
        content_type: short(properties.content_type()),
        headers,
        created_at,
    }
}

mod classic {
    outbox_testkit::publisher_suite!(super::AmqpHarness::start("classic").await);
}

mod quorum {
    outbox_testkit::publisher_suite!(super::AmqpHarness::start("quorum").await);
}
