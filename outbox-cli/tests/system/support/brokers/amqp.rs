//! Queues of RabbitMQ.

use async_trait::async_trait;
use lapin::{
    Channel, Connection, ConnectionProperties,
    message::BasicGetMessage,
    options::{BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use outbox_testkit::{
    invariants::Sighting,
    servers::{RabbitMq, Server},
};

use super::{Broker, sighting};

pub(super) struct Queues(pub(super) RabbitMq);

impl Queues {
    async fn channel(&self) -> (Connection, Channel) {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.0.url(), properties)
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }
}

fn attribute(message: &BasicGetMessage, name: &str) -> Option<String> {
    let properties = &message.delivery.properties;
    match name {
        "event-id" => properties.message_id().as_ref().map(ToString::to_string),
        "event-type" => properties.kind().as_ref().map(ToString::to_string),
        name => match properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            other => panic!("{name}: {other:?}"),
        },
    }
}

#[async_trait]
impl Broker for Queues {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn prepare(&mut self, topic: &str) {
        let (_connection, channel) = self.channel().await;
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = channel.queue_declare(topic.into(), durable, FieldTable::default());
        declared.await.unwrap();
    }

    async fn read(&mut self, topic: &str) -> Vec<Sighting> {
        let (_connection, channel) = self.channel().await;
        let mut seen = vec![];
        loop {
            let next = channel.basic_get(topic.into(), BasicGetOptions { no_ack: true });
            let Some(message) = next.await.unwrap() else {
                return seen;
            };
            let payload = message.delivery.data.clone().into();
            seen.push(sighting(topic, Some(payload), |name| {
                attribute(&message, name)
            }));
        }
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.0
    }
}
