//! Kafka, one node, with a topic of 6 partitions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Binding, Publisher, StoredEvent};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_testkit::servers::{self, Server};
use rdkafka::{
    ClientConfig, ClientContext,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer},
    types::RDKafkaErrorCode,
};
use tokio::task::spawn_blocking;

use super::{Broker, Other, Pairs, Window, pairs, payload};

const TOPIC: &str = "bench-kafka";
const PARTITIONS: i32 = 6;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Kafka {
    server: servers::Kafka,
    /// What the topic had when it was emptied: emptying it takes Kafka a while, so that it is left.
    before: usize,
    /// The bare producer, kept as the publisher keeps its own.
    bare: Arc<ThreadedProducer<Counter>>,
}

/// A record as the publisher writes it.
struct Record {
    key: Option<String>,
    headers: Pairs,
    payload: Bytes,
}

impl Kafka {
    pub(crate) async fn start() -> Result<Self> {
        let server = servers::Kafka::start_for_load()?;
        let bare = properties(&server).create_with_context(Counter::default())?;
        let kafka = Self {
            server,
            before: 0,
            bare: Arc::new(bare),
        };
        let admin: AdminClient<DefaultClientContext> = client(&kafka.server).create()?;
        let topic = NewTopic::new(TOPIC, PARTITIONS, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        for made in admin.create_topics([&topic], &options).await? {
            made.map_err(|(topic, code)| anyhow::anyhow!("{topic}: {code}"))?;
        }
        Ok(kafka)
    }

    /// `host:port`.
    pub(crate) fn bootstrap(&self) -> String {
        self.server.bootstrap()
    }

    async fn ends(&self) -> Result<usize> {
        let client = client(&self.server);
        spawn_blocking(move || {
            let consumer: BaseConsumer = client.create()?;
            let mut ends = 0;
            for partition in 0..PARTITIONS {
                ends += consumer.fetch_watermarks(TOPIC, partition, PATIENCE)?.1;
            }
            Ok(usize::try_from(ends)?)
        })
        .await?
    }
}

fn client(server: &servers::Kafka) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", server.bootstrap());
    client
}

/// librdkafka's properties as the publisher sets them, except for its own connections' pace.
fn properties(server: &servers::Kafka) -> ClientConfig {
    let usual = KafkaConfig::new(server.bootstrap());
    let mut properties = client(server);
    for (name, value) in [
        ("enable.idempotence", "true".to_owned()),
        ("acks", "all".to_owned()),
        ("linger.ms", "1".to_owned()),
        ("partitioner", "murmur2_random".to_owned()),
        ("compression.type", "none".to_owned()),
        ("socket.nagle.disable", "true".to_owned()),
        ("batch.size", usual.batch_bytes_max.to_string()),
        ("batch.num.messages", usual.in_flight_events_max.to_string()),
        (
            "queue.buffering.max.messages",
            usual.in_flight_events_max.to_string(),
        ),
        (
            "queue.buffering.max.kbytes",
            (usual.in_flight_bytes_max / 1024).to_string(),
        ),
    ] {
        properties.set(name, value);
    }
    properties
}

#[async_trait]
impl Broker for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn topic(&self) -> &'static str {
        TOPIC
    }

    fn publisher(&self, publish_timeout: Duration) -> Result<Arc<dyn Publisher>> {
        let mut config = KafkaConfig::new(self.bootstrap());
        config.publish_timeout = publish_timeout;
        Ok(Arc::new(KafkaPublisher::new(config)?))
    }

    async fn clear(&mut self) -> Result<()> {
        self.before = self.ends().await?;
        Ok(())
    }

    async fn stored(&self) -> Result<usize> {
        Ok(self.ends().await? - self.before)
    }

    /// One producer, whose queue of as many events as the publisher's is the window: lanes would
    /// make it no faster.
    async fn bare(&self, events: &[StoredEvent], _window: Window) -> Result<Duration> {
        let records: Vec<Record> = events.iter().map(record).collect::<Result<_>>()?;
        let producer = Arc::clone(&self.bare);
        spawn_blocking(move || {
            let started = Instant::now();
            send(&producer, &records)?;
            Ok(started.elapsed())
        })
        .await?
    }

    /// The bare loop keeps as much under way as one producer holds, however small the relay's
    /// batches are; so the second row does as well.
    fn windows(&self, usual: Window) -> Vec<Window> {
        let held = KafkaConfig::new(self.bootstrap()).in_flight_events_max;
        let batch = held / usual.lanes;
        vec![usual, Window { batch, ..usual }]
    }

    async fn others(&mut self, events: usize) -> Result<Vec<Other>> {
        const NONE: &[&str] = &[];
        const LARGE: &[&str] = &["batch.size=262144", "linger.ms=5"];
        // Its compilers need some seconds to warm up.
        let records = 5 * events;
        let mut others = Vec::new();
        for (client, properties) in [
            ("Java's ProducerPerformance", NONE),
            ("the same, batches of 256 KiB, 5 ms", LARGE),
        ] {
            let brokers = self.bootstrap();
            let measure =
                move || servers::Kafka::producer_performance(&brokers, TOPIC, records, properties);
            others.push(Other {
                client,
                events_per_second: spawn_blocking(measure).await??,
            });
        }
        Ok(others)
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.server
    }
}

/// Counts what came back.
#[derive(Default)]
struct Counter {
    acknowledged: AtomicUsize,
    failed: AtomicUsize,
}

impl ClientContext for Counter {}

impl ProducerContext for Counter {
    type DeliveryOpaque = ();

    fn delivery(&self, report: &DeliveryResult<'_>, (): ()) {
        let count = match report {
            Ok(_) => &self.acknowledged,
            Err(_) => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn record(event: &StoredEvent) -> Result<Record> {
    Ok(Record {
        key: event.key.clone(),
        headers: pairs(event, Binding::Kafka)?,
        payload: payload(event),
    })
}

/// Sends all and waits for the answers.
fn send(producer: &ThreadedProducer<Counter>, records: &[Record]) -> Result<()> {
    /// How soon a full queue is tried again.
    const TICK: Duration = Duration::from_micros(200);

    let counter = producer.context();
    let before = counter.acknowledged.load(Ordering::Relaxed);
    for record in records {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in &record.headers {
            let value = Some(value);
            headers = headers.insert(Header { key, value });
        }
        let mut next = BaseRecord::to(TOPIC)
            .payload(record.payload.as_ref())
            .headers(headers);
        next.key = record.key.as_deref();
        while let Err((error, back)) = producer.send(next) {
            let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            ensure!(full, "{error}");
            thread::sleep(TICK);
            next = back;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while counter.acknowledged.load(Ordering::Relaxed) - before < records.len() {
        ensure!(
            counter.failed.load(Ordering::Relaxed) == 0,
            "a record failed"
        );
        ensure!(Instant::now() < deadline, "no answer for all records");
        thread::sleep(TICK);
    }
    Ok(())
}
