//! Events, streams and messages for the tests.

use std::{collections::HashSet, time::Duration};

use async_nats::jetstream::{self, consumer::pull, stream};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::StreamExt as _;
use outbox_core::{Error, ErrorKind, Event, Outcome, Position, Publisher as _, Scope, StoredEvent};
use outbox_nats::{NatsConfig, NatsPublisher};
use uuid::Uuid;

/// The shared server.
pub(crate) fn shared_url() -> String {
    std::env::var("OUTBOX_TEST_NATS_URL").unwrap_or_else(|_| {
        panic!("OUTBOX_TEST_NATS_URL is not set: run these tests by `cargo xtask integration`")
    })
}

/// A subject, or a stream's name, that no other test uses.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", Uuid::new_v4())
}

pub(crate) fn publisher(url: &str) -> NatsPublisher {
    configured(url, |_| ())
}

pub(crate) fn configured(url: &str, set: impl FnOnce(&mut NatsConfig)) -> NatsPublisher {
    let mut config = NatsConfig::new(url);
    set(&mut config);
    NatsPublisher::new(config).unwrap()
}

/// The driver does not sign in by what the URL says.
pub(crate) async fn jetstream(url: &str) -> jetstream::Context {
    let address: async_nats::ServerAddr = url.parse().unwrap();
    let decode = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8()
            .unwrap()
            .into_owned()
    };
    let options = async_nats::ConnectOptions::new();
    let options = match (address.username(), address.password()) {
        (Some(user), Some(password)) => options.user_and_password(decode(user), decode(password)),
        _ => options,
    };
    jetstream::new(options.connect(address).await.unwrap())
}

/// A stream for this subject, or these with a wildcard.
pub(crate) async fn stream(url: &str, name: &str, subject: &str) {
    stream_with(url, name, subject, |_| ()).await;
}

pub(crate) async fn stream_with(
    url: &str,
    name: &str,
    subject: &str,
    set: impl FnOnce(&mut stream::Config),
) {
    let mut config = stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..Default::default()
    };
    set(&mut config);
    jetstream(url).await.create_stream(config).await.unwrap();
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) headers: async_nats::HeaderMap,
    pub(crate) payload: bytes::Bytes,
}

impl Stored {
    /// A header as docs.md tells to read it.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.headers.get(name).map(|value| decode(value.as_str()))
    }
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.bytes(name)
            .map(|bytes| String::from_utf8(bytes).unwrap())
    }
    pub(crate) fn number(&self) -> usize {
        std::str::from_utf8(&self.payload).unwrap().parse().unwrap()
    }
}

pub(crate) fn decode(value: &str) -> Vec<u8> {
    match value.strip_prefix("base64:") {
        Some(encoded) => STANDARD.decode(encoded).unwrap(),
        None => value.as_bytes().to_owned(),
    }
}

/// All messages of the subject in their order.
pub(crate) async fn messages(url: &str, stream: &str, subject: &str) -> Vec<Stored> {
    let context = jetstream(url).await;
    let stream = context.get_stream(stream).await.unwrap();
    let consumer = stream
        .create_consumer(pull::Config {
            filter_subject: subject.to_owned(),
            ack_policy: jetstream::consumer::AckPolicy::None,
            ..Default::default()
        })
        .await
        .unwrap();
    let mut stored = Vec::new();
    loop {
        let batch = consumer
            .fetch()
            .max_messages(5_000)
            .messages()
            .await
            .unwrap();
        let before = stored.len();
        let mut batch = Box::pin(batch);
        while let Some(message) = batch.next().await {
            let message = message.unwrap();
            stored.push(Stored {
                sequence: message.info().unwrap().stream_sequence,
                headers: message.headers.clone().unwrap_or_default(),
                payload: message.payload.clone(),
            });
        }
        if stored.len() - before < 5_000 {
            return stored;
        }
    }
}

/// How many messages the stream has.
pub(crate) async fn count(url: &str, stream: &str) -> u64 {
    let mut stream = jetstream(url).await.get_stream(stream).await.unwrap();
    stream.info().await.unwrap().state.messages
}

pub(crate) fn stored(event: &Event) -> StoredEvent {
    StoredEvent::from_event(event, Position(0), time::OffsetDateTime::now_utc())
}

/// An event whose payload is its number.
pub(crate) fn numbered(topic: &str, number: usize) -> StoredEvent {
    let event = Event::new(topic, "Counted").key("k");
    stored(&event.bytes(number.to_string()).unwrap())
}

pub(crate) fn numbers(topic: &str, range: std::ops::Range<usize>) -> Vec<StoredEvent> {
    range.map(|number| numbered(topic, number)).collect()
}

/// The numbers in their order, each at its first appearance.
pub(crate) fn first_appearances(stored: &[Stored]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let numbers = stored.iter().map(Stored::number);
    numbers.filter(|number| seen.insert(*number)).collect()
}

#[track_caller]
pub(crate) fn all_delivered(outcomes: &[Outcome]) {
    for (index, outcome) in outcomes.iter().enumerate() {
        assert!(outcome.is_delivered(), "{index}: {outcome:?}");
    }
}

/// Asserts kind and scope of a failure that did not land.
#[track_caller]
pub(crate) fn failed(outcome: &Outcome, kind: ErrorKind, scope: Scope) -> &Error {
    let Outcome::Failed(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (error.kind(), error.failure_scope()),
        (kind, scope),
        "{error}"
    );
    error
}

#[track_caller]
pub(crate) fn unknown(outcome: &Outcome, kind: ErrorKind, scope: Scope) {
    let Outcome::Unknown(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (error.kind(), error.failure_scope()),
        (kind, scope),
        "{error}"
    );
}

/// Publishes as a relay does: behind the delivered beginning of a batch all goes again, after a
/// pause. Returns how many calls had an event that was not delivered.
pub(crate) async fn publish_all(publisher: &NatsPublisher, events: &[StoredEvent]) -> usize {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let (mut done, mut failures) = (0, 0);
    while done < events.len() {
        let batch = &events[done..events.len().min(done + 200)];
        let outcomes = publisher.publish(batch).await;
        assert_eq!(outcomes.len(), batch.len());
        let delivered = outcomes.iter().take_while(|o| o.is_delivered()).count();
        done += delivered;
        if delivered < batch.len() {
            failures += 1;
            assert!(
                tokio::time::Instant::now() < deadline,
                "it does not recover: {:?}",
                outcomes[delivered]
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    failures
}
