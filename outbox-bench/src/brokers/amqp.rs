//! RabbitMQ with one durable classic queue.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm, Queue,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions},
    types::{AMQPValue, FieldTable, LongString},
};
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Attribute, Binding, Encoding, Publisher, StoredEvent};
use outbox_testkit::servers::{self, Server};

use super::{Broker, Pairs, Window, in_lanes, payload};

const TOPIC: &str = "bench-amqp";
const PERSISTENT: u8 = 2;

pub(crate) struct Amqp {
    server: servers::RabbitMq,
}

/// A message as the publisher writes it.
struct Message {
    id: String,
    event_type: String,
    content_type: Option<String>,
    created_at: u64,
    headers: Pairs,
    body: Bytes,
}

impl Amqp {
    pub(crate) async fn start() -> Result<Self> {
        let server = servers::RabbitMq::start()?;
        let amqp = Self { server };
        amqp.queue(QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        })
        .await?;
        Ok(amqp)
    }

    /// Declares the queue; the server tells how many messages it has.
    async fn queue(&self, options: QueueDeclareOptions) -> Result<Queue> {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        let declared = channel.queue_declare(TOPIC.into(), options, FieldTable::default());
        Ok(declared.await?)
    }

    async fn connect(&self) -> Result<Connection> {
        let properties = ConnectionProperties::default();
        Ok(Connection::connect(&self.server.url(), properties).await?)
    }
}

#[async_trait]
impl Broker for Amqp {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn topic(&self) -> &'static str {
        TOPIC
    }

    fn publisher(&self, publish_timeout: Duration) -> Result<Arc<dyn Publisher>> {
        let mut config = AmqpConfig::new(self.server.url());
        config.publish_timeout = publish_timeout;
        Ok(Arc::new(AmqpPublisher::new(config)?))
    }

    async fn clear(&mut self) -> Result<()> {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await?;
        let options = QueuePurgeOptions::default();
        channel.queue_purge(TOPIC.into(), options).await?;
        Ok(())
    }

    async fn stored(&self) -> Result<usize> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self.queue(passive).await?;
        Ok(usize::try_from(queue.message_count())?)
    }

    /// A channel for each lane, as each call of the publisher has one.
    async fn bare(&self, events: &[StoredEvent], window: Window) -> Result<Duration> {
        let messages: Vec<Message> = events.iter().map(message).collect::<Result<_>>()?;
        let connection = self.connect().await?;
        let mut channels = Vec::new();
        for _ in 0..window.lanes {
            let channel = connection.create_channel().await?;
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await?;
            channels.push(channel);
        }
        let started = Instant::now();
        in_lanes(messages, window.lanes, |part| {
            let channel = channels.pop();
            async move {
                let channel = channel.context("no channel for a lane")?;
                send(&channel, part, window.batch).await
            }
        })
        .await?;
        Ok(started.elapsed())
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.server
    }
}

fn message(event: &StoredEvent) -> Result<Message> {
    let mut headers = Pairs::new();
    Encoding::Plain.attributes(event, Binding::Amqp, |attribute, name, value| {
        // These are properties.
        let is_property = matches!(
            attribute,
            Attribute::Id | Attribute::Type | Attribute::ContentType
        );
        if !is_property {
            headers.push((name.to_owned(), value.into()));
        }
    })?;
    if let Some(key) = &event.key {
        headers.push(("outbox-key".to_owned(), key.clone().into()));
    }
    headers.extend(super::headers(event));
    Ok(Message {
        id: event.id.to_string(),
        event_type: event.event_type.clone(),
        content_type: event.content_type.clone(),
        created_at: event.created_at.unix_timestamp().try_into()?,
        headers,
        body: payload(event),
    })
}

async fn send(channel: &Channel, messages: Vec<Message>, window: usize) -> Result<()> {
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let mut in_flight = VecDeque::with_capacity(window);
    for message in messages {
        if in_flight.len() == window
            && let Some(first) = in_flight.pop_front()
        {
            confirmed(first).await?;
        }
        let mut headers = FieldTable::default();
        for (name, value) in &message.headers {
            let value = LongString::from(value.as_slice());
            headers.insert(name.as_str().into(), AMQPValue::LongString(value));
        }
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(message.id.into())
            .with_type(message.event_type.into())
            .with_timestamp(message.created_at)
            .with_headers(headers);
        if let Some(content_type) = message.content_type {
            properties = properties.with_content_type(content_type.into());
        }
        let sent =
            channel.basic_publish("".into(), TOPIC.into(), options, &message.body, properties);
        in_flight.push_back(sent.await?);
    }
    for confirm in in_flight {
        confirmed(confirm).await?;
    }
    Ok(())
}

async fn confirmed(confirm: PublisherConfirm) -> Result<()> {
    ensure!(confirm.await?.is_ack(), "the server refused a message");
    Ok(())
}
