//! Events, queues and connections for the tests.

use std::{net::SocketAddr, time::Duration};

use futures::StreamExt as _;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions,
        ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, LongString},
};
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Error, ErrorKind, Outcome, Scope, StoredEvent};
use outbox_testkit::publishing;
pub(crate) use outbox_testkit::publishing::{
    all_delivered, failed, numbered, numbers, stored, unique,
};
use tokio::time::timeout;

/// The shared server.
pub(crate) fn shared_url() -> String {
    publishing::shared_url("OUTBOX_TEST_AMQP_URL")
}

/// The shared server's address.
pub(crate) fn address() -> SocketAddr {
    let url = shared_url();
    let address = url.trim_start_matches("amqp://").split('/').next().unwrap();
    address.rsplit('@').next().unwrap().parse().unwrap()
}

pub(crate) fn publisher(url: &str) -> AmqpPublisher {
    AmqpPublisher::new(AmqpConfig::new(url)).unwrap()
}

pub(crate) fn configured(url: &str, set: impl FnOnce(&mut AmqpConfig)) -> AmqpPublisher {
    let mut config = AmqpConfig::new(url);
    set(&mut config);
    AmqpPublisher::new(config).unwrap()
}

/// A connection of the test itself.
pub(crate) struct Client {
    pub(crate) connection: Connection,
}

/// A message as it stands in a queue.
pub(crate) struct Message {
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn number(&self) -> usize {
        std::str::from_utf8(&self.body).unwrap().parse().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<Vec<u8>> {
        let headers = self.properties.headers().as_ref()?;
        match headers.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.as_bytes().to_vec()),
            AMQPValue::ByteArray(bytes) => Some(bytes.as_slice().to_vec()),
            other => panic!("{name}: {other:?}"),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.header(name).map(|b| String::from_utf8(b).unwrap())
    }
}

/// Arguments of a queue, as numbers or text.
pub(crate) fn arguments(pairs: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in pairs {
        let value = match value.parse() {
            Ok(number) => AMQPValue::LongLongInt(number),
            Err(_) => AMQPValue::LongString(LongString::from(*value)),
        };
        table.insert((*name).into(), value);
    }
    table
}

impl Client {
    pub(crate) async fn connect(url: &str) -> Self {
        let connecting = Connection::connect(url, ConnectionProperties::default());
        let connection = timeout(Duration::from_secs(20), connecting).await;
        Self {
            connection: connection.unwrap().unwrap(),
        }
    }

    pub(crate) async fn channel(&self) -> Channel {
        self.connection.create_channel().await.unwrap()
    }

    /// Declares a durable queue.
    pub(crate) async fn queue(&self, name: &str, pairs: &[(&str, &str)]) {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.channel().await;
        let declared = channel.queue_declare(name.into(), options, arguments(pairs));
        declared.await.unwrap();
    }

    /// Declares a durable exchange of this type.
    pub(crate) async fn exchange(&self, name: &str, kind: lapin::ExchangeKind) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let channel = self.channel().await;
        let declared = channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        declared.await.unwrap();
    }

    pub(crate) async fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let channel = self.channel().await;
        let bound = channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.unwrap();
    }

    pub(crate) async fn delete_queue(&self, name: &str) {
        let channel = self.channel().await;
        let deleted = channel.queue_delete(name.into(), QueueDeleteOptions::default());
        deleted.await.unwrap();
    }

    pub(crate) async fn delete_exchange(&self, name: &str) {
        let channel = self.channel().await;
        let deleted = channel.exchange_delete(name.into(), ExchangeDeleteOptions::default());
        deleted.await.unwrap();
    }

    /// How many messages are ready; `None` when there is no such queue.
    pub(crate) async fn count(&self, queue: &str) -> Option<usize> {
        let channel = self.channel().await;
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
        let queue = declared.await.ok()?;
        Some(queue.message_count().try_into().unwrap())
    }

    /// Everything that is in the queue, in its order; it stays there.
    pub(crate) async fn messages(&self, queue: &str) -> Vec<Message> {
        let Some(count) = self.count(queue).await else {
            return vec![];
        };
        self.read(queue, count, FieldTable::default()).await
    }

    /// Reads so many messages without taking them out.
    pub(crate) async fn read(
        &self,
        queue: &str,
        count: usize,
        arguments: FieldTable,
    ) -> Vec<Message> {
        let channel = self.channel().await;
        let is_stream = !arguments.inner().is_empty();
        if is_stream {
            channel
                .basic_qos(1000, BasicQosOptions::default())
                .await
                .unwrap();
        }
        let mut messages = vec![];
        while messages.len() < count {
            let consumer = channel.basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                arguments.clone(),
            );
            let mut consumer = consumer.await.unwrap();
            let before = messages.len();
            while messages.len() < count {
                let next = timeout(Duration::from_secs(1), consumer.next()).await;
                let Ok(Some(Ok(delivery))) = next else { break };
                if is_stream {
                    delivery.ack(BasicAckOptions::default()).await.unwrap();
                }
                messages.push(Message {
                    properties: delivery.properties,
                    body: delivery.data,
                });
            }
            // A quorum queue sends a consumer 2,000 messages and waits for acknowledgements then;
            // another consumer gets those behind them.
            if messages.len() == before {
                break;
            }
        }
        // What was not acknowledged goes back to its place.
        channel.close(200, "OK".into()).await.unwrap();
        messages
    }

    pub(crate) async fn numbers(&self, queue: &str) -> Vec<usize> {
        let messages = self.messages(queue).await;
        messages.iter().map(Message::number).collect()
    }
}

/// Each number at its first appearance.
pub(crate) fn first_appearances(numbers: &[usize]) -> Vec<usize> {
    publishing::first_appearances(numbers.iter().copied())
}

/// Asserts the kind of a failure of the destination that left doubt.
#[track_caller]
pub(crate) fn unknown(outcome: &Outcome, kind: ErrorKind) -> &Error {
    publishing::unknown(outcome, kind, Scope::Destination)
}

/// Publishes as a relay does. Returns how many events were sent again.
pub(crate) async fn publish_all(publisher: &AmqpPublisher, events: &[StoredEvent]) -> usize {
    let (patience, pause) = (Duration::from_secs(120), Duration::from_millis(50));
    let repeats = publishing::publish_all(publisher, events, patience, pause);
    repeats.await.events
}
