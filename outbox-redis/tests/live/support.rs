//! Events, entries and connections for the tests.

use std::{collections::HashMap, time::Duration};

use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope, StoredEvent};
use outbox_redis::{RedisConfig, RedisPublisher};
use outbox_testkit::publishing;
pub(crate) use outbox_testkit::publishing::{all_delivered, failed, numbers, stored, unique};
use redis::aio::MultiplexedConnection;

/// The shared server.
pub(crate) fn shared_url() -> String {
    publishing::shared_url("OUTBOX_TEST_REDIS_URL")
}

pub(crate) fn publisher(url: &str) -> RedisPublisher {
    RedisPublisher::new(RedisConfig::new(url)).unwrap()
}

pub(crate) fn configured(url: &str, set: impl FnOnce(&mut RedisConfig)) -> RedisPublisher {
    let mut config = RedisConfig::new(url);
    set(&mut config);
    RedisPublisher::new(config).unwrap()
}

pub(crate) async fn connection(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(Duration::from_secs(20)))
        .set_connection_timeout(Some(Duration::from_secs(20)));
    let client = redis::Client::open(url).unwrap();
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

/// Runs a command written as words.
pub(crate) async fn run(connection: &mut MultiplexedConnection, words: &str) {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.exec_async(connection).await.unwrap();
}

/// An entry of a stream.
pub(crate) struct Entry {
    pub(crate) id: String,
    fields: HashMap<String, Vec<u8>>,
}

impl Entry {
    pub(crate) fn bytes(&self, field: &str) -> Option<&[u8]> {
        self.fields.get(field).map(Vec::as_slice)
    }
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.bytes(field)
            .map(|bytes| std::str::from_utf8(bytes).unwrap())
    }
    pub(crate) fn number(&self) -> usize {
        self.text("payload").unwrap().parse().unwrap()
    }
}

/// Names and values of an entry as they stand on the wire.
type Fields = Vec<(String, Vec<u8>)>;

/// A whole stream.
pub(crate) async fn entries(connection: &mut MultiplexedConnection, topic: &str) -> Vec<Entry> {
    let mut command = redis::cmd("XRANGE");
    command.arg(topic).arg("-").arg("+");
    let entries: Vec<(String, Fields)> = command.query_async(connection).await.unwrap();
    entries
        .into_iter()
        .map(|(id, pairs)| {
            let count = pairs.len();
            let fields: HashMap<_, _> = pairs.into_iter().collect();
            assert_eq!(fields.len(), count, "a field is there twice");
            Entry { id, fields }
        })
        .collect()
}

/// The numbers of a stream in its order, each at its first appearance.
pub(crate) fn first_appearances(entries: &[Entry]) -> Vec<usize> {
    publishing::first_appearances(entries.iter().map(Entry::number))
}

/// Publishes some events, which the server refuses with this code for a state of its own.
pub(crate) async fn refused(publisher: &RedisPublisher, topic: &str, code: &str, kind: ErrorKind) {
    for outcome in publisher.publish(&numbers(topic, 5..10)).await {
        let error = failed(&outcome, kind, Scope::Destination);
        assert!(error.to_string().contains(code), "{error}");
    }
}

/// Publishes as a relay does: what is not delivered goes again, in front, after a pause. Returns
/// how many calls had an event that was not delivered.
pub(crate) async fn publish_all(publisher: &RedisPublisher, mut events: Vec<StoredEvent>) -> usize {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let mut failures = 0;
    while !events.is_empty() {
        let batch = events.len().min(200);
        let outcomes = publisher.publish(&events[..batch]).await;
        assert_eq!(outcomes.len(), batch);
        let mut outcomes = outcomes.iter().map(Outcome::is_delivered);
        let before = events.len();
        events.retain(|_| !outcomes.next().unwrap_or(false));
        if events.len() > before - batch {
            failures += 1;
            assert!(
                tokio::time::Instant::now() < deadline,
                "it does not recover"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    failures
}
