//! Events, records and topics for the tests.

use std::time::Duration;

use bytes::Bytes;
use outbox_core::StoredEvent;
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_testkit::publishing;
pub(crate) use outbox_testkit::publishing::{
    all_delivered, failed, numbered, numbers, stored, unique,
};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::Headers as _,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// The shared broker, as `host:port`.
pub(crate) fn shared() -> String {
    let url = publishing::shared_url("OUTBOX_TEST_KAFKA_URL");
    let rest = url.strip_prefix("kafka://").unwrap_or(&url);
    rest.trim_end_matches('/').to_owned()
}

/// A client's properties for a broker without sign-in.
pub(crate) fn plain(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

/// Makes a topic with so many partitions and these settings, by a client with these properties.
pub(crate) async fn make_topic_by(
    client: &ClientConfig,
    topic: &str,
    partitions: i32,
    settings: &[(&str, &str)],
) {
    let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let options = AdminOptions::new()
        .operation_timeout(Some(PATIENCE))
        .request_timeout(Some(PATIENCE));
    let made = admin.create_topics([&new], &options).await.unwrap();
    made[0].as_ref().unwrap();
    // The controller has it before the broker knows of it.
    let topic = topic.to_owned();
    let known = tokio::task::spawn_blocking(move || {
        let deadline = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < deadline {
            let metadata = admin
                .inner()
                .fetch_metadata(Some(&topic), PATIENCE)
                .unwrap();
            if metadata.topics()[0].error().is_none() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    });
    assert!(known.await.unwrap(), "the topic is not there");
}

/// A new topic with one partition.
pub(crate) async fn topic(brokers: &str, name: &str) -> String {
    topic_with(brokers, name, &[]).await
}

pub(crate) async fn topic_with(brokers: &str, name: &str, settings: &[(&str, &str)]) -> String {
    let topic = unique(name);
    make_topic_by(&plain(brokers), &topic, 1, settings).await;
    topic
}

pub(crate) async fn delete_topic(brokers: &str, topic: &str) {
    let admin: AdminClient<DefaultClientContext> = plain(brokers).create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let gone = admin.delete_topics(&[topic], &options).await.unwrap();
    gone[0].as_ref().unwrap();
}

pub(crate) fn publisher(brokers: &str) -> KafkaPublisher {
    KafkaPublisher::new(KafkaConfig::new(brokers)).unwrap()
}

pub(crate) fn configured(brokers: &str, set: impl FnOnce(&mut KafkaConfig)) -> KafkaPublisher {
    let mut config = KafkaConfig::new(brokers);
    set(&mut config);
    KafkaPublisher::new(config).unwrap()
}

/// A record of a topic.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Bytes>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

impl Record {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(its, _)| its == name)?;
        Some(std::str::from_utf8(value).unwrap())
    }
    pub(crate) fn number(&self) -> usize {
        let payload = self.payload.as_ref().unwrap();
        std::str::from_utf8(payload).unwrap().parse().unwrap()
    }
}

/// All that is in a topic now, partition by partition; nothing of a topic that is not there.
pub(crate) async fn records(brokers: &str, topic: &str) -> Vec<Record> {
    let (client, topic) = (plain(brokers), topic.to_owned());
    tokio::task::spawn_blocking(move || read(&client, &topic))
        .await
        .unwrap()
}

fn read(client: &ClientConfig, topic: &str) -> Vec<Record> {
    let mut client = client.clone();
    client
        .set("group.id", "unused")
        .set("enable.auto.commit", "false");
    client.set("fetch.message.max.bytes", "20000000");
    client.set("allow.auto.create.topics", "false");
    let consumer: BaseConsumer = client.create().unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let entry = &metadata.topics()[0];
    if entry.error().is_some() {
        return Vec::new();
    }
    let mut ends = Vec::new();
    let mut list = TopicPartitionList::new();
    for partition in entry.partitions() {
        let (_, end) = consumer
            .fetch_watermarks(topic, partition.id(), PATIENCE)
            .unwrap();
        if end > 0 {
            list.add_partition_offset(topic, partition.id(), Offset::Beginning)
                .unwrap();
            ends.push((partition.id(), end));
        }
    }
    consumer.assign(&list).unwrap();
    let mut records: Vec<Record> = Vec::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    while !ends.is_empty() && std::time::Instant::now() < deadline {
        let Some(message) = consumer.poll(Duration::from_millis(500)) else {
            continue;
        };
        let message = message.unwrap();
        ends.retain(|(partition, end)| {
            *partition != message.partition() || message.offset() + 1 < *end
        });
        let headers = message
            .headers()
            .into_iter()
            .flat_map(|headers| headers.iter());
        records.push(Record {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(Bytes::copy_from_slice),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.unwrap().to_vec()))
                .collect(),
        });
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

/// The numbers of a topic in its order, each at its first appearance.
pub(crate) fn first_appearances(records: &[Record]) -> Vec<usize> {
    publishing::first_appearances(records.iter().map(Record::number))
}

/// Publishes as a relay does. Returns how many calls had an event that was not delivered.
pub(crate) async fn publish_all(publisher: &KafkaPublisher, events: &[StoredEvent]) -> usize {
    let (patience, pause) = (Duration::from_secs(90), Duration::from_millis(20));
    let repeats = publishing::publish_all(publisher, events, patience, pause);
    repeats.await.calls
}

/// Asks until there is an answer, for some seconds.
pub(crate) async fn eventually(ask: impl AsyncFnMut() -> Option<()>) -> Option<()> {
    outbox_testkit::eventually(PATIENCE, ask).await
}
