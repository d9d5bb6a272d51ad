//! Brokers of every kind, to be stopped and read.

mod amqp;
mod kafka;
mod nats;
mod redis;
mod webhook;

use std::io::Write as _;

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Event, Headers};
use outbox_testkit::{
    invariants::{History, KeyOrder, Report, Sighting, check},
    servers::{self, Server},
};

use super::Settings;

/// A private server that events of one topic go to, and a consumer of it.
#[async_trait]
pub(crate) trait Broker: Send {
    /// What the program calls the publisher.
    fn name(&self) -> &'static str;

    fn url(&self) -> String;

    /// Makes what takes the topic's events.
    async fn prepare(&mut self, topic: &str);

    /// What a consumer finds, in the broker's order.
    async fn read(&mut self, topic: &str) -> Vec<Sighting>;

    fn server(&mut self) -> &mut dyn Server;
}

/// One of each that the network has a server of; they start side by side.
pub(crate) fn servers() -> Vec<Box<dyn Broker>> {
    let starts: [fn() -> Box<dyn Broker>; _] = [
        || Box::new(kafka::Topics(servers::Kafka::start().unwrap())),
        || Box::new(nats::Streams(servers::Nats::start().unwrap())),
        || Box::new(amqp::Queues(servers::RabbitMq::start().unwrap())),
        || Box::new(redis::Streams(servers::Redis::start().unwrap())),
    ];
    let started = starts.map(std::thread::spawn);
    started.map(|thread| thread.join().unwrap()).into()
}

/// Starts all of them again, side by side.
pub(crate) fn restart(brokers: &mut [Box<dyn Broker>]) {
    std::thread::scope(|scope| {
        for broker in brokers {
            scope.spawn(|| broker.server().restart().unwrap());
        }
    });
}

/// And a receiver of webhooks.
pub(crate) fn all() -> Vec<Box<dyn Broker>> {
    let mut all = servers();
    all.push(Box::new(webhook::Hooks::start()));
    all
}

/// The topic that the broker has in these tests.
fn topic(broker: &dyn Broker) -> String {
    format!("to.{}", broker.name())
}

/// Makes what takes the events of each; gives their topics.
pub(crate) async fn prepare(brokers: &mut [Box<dyn Broker>]) -> Vec<String> {
    let mut topics = vec![];
    for broker in brokers {
        let topic = topic(broker.as_ref());
        broker.prepare(&topic).await;
        topics.push(topic);
    }
    topics
}

/// Each must have got what was written for it, as the checker judges it. Tells how each fared, and gives
/// it by topic.
pub(crate) async fn assert_all_there(
    test: &str,
    brokers: &mut [Box<dyn Broker>],
    written: &[Event],
    order: KeyOrder,
) -> Vec<(String, Report)> {
    let mut reports = vec![];
    for broker in brokers {
        let topic = topic(broker.as_ref());
        let of_topic = written.iter().filter(|event| event.topic() == topic);
        let history = History {
            committed: of_topic.cloned().collect(),
            seen: broker.read(&topic).await,
            ..History::default()
        };
        let report = check(&history, order).unwrap_or_else(|wrong| panic!("{topic}: {wrong}"));
        // Past the test harness, which shows only what failed.
        let line = format!("{test}, {topic}: {report}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        reports.push((topic, report));
    }
    reports
}

/// A relay with a route to each of them, named as the broker, that answers an outage within a second.
pub(crate) fn routed(mut settings: Settings, brokers: &[Box<dyn Broker>]) -> Settings {
    for broker in brokers {
        let route = format!("routes.{}", broker.name());
        settings = settings
            .set(&format!("{route}.topics"), topic(broker.as_ref()))
            .set(&format!("{route}.breaker.cap"), "1s")
            .set(&format!("{route}.publisher.publish_timeout"), "5s")
            .set(&format!("{route}.publisher.connect_timeout"), "1s")
            .set(&format!("{route}.publisher.url"), broker.url());
    }
    settings
}

/// From what consumers of the plain encoding see, with one header of the event's own: `number`.
fn sighting(
    topic: &str,
    payload: Option<Bytes>,
    read: impl Fn(&str) -> Option<String>,
) -> Sighting {
    let mut headers = Headers::default();
    if let Some(number) = read("number") {
        headers.push("number", number);
    }
    Sighting {
        id: read("event-id").unwrap().parse().unwrap(),
        topic: topic.to_owned(),
        key: read("outbox-key"),
        event_type: read("event-type").unwrap(),
        payload,
        headers,
    }
}
