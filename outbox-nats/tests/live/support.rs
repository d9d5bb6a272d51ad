//! Events, streams and messages for the tests.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::pull, stream};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::StreamExt as _;
use outbox_core::StoredEvent;
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::publishing;
pub(crate) use outbox_testkit::publishing::{
    all_delivered, failed, numbered, numbers, stored, unique, unknown,
};

/// The shared server.
pub(crate) fn shared_url() -> String {
    publishing::shared_url("OUTBOX_TEST_NATS_URL")
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

/// The numbers in their order, each at its first appearance.
pub(crate) fn first_appearances(stored: &[Stored]) -> Vec<usize> {
    publishing::first_appearances(stored.iter().map(Stored::number))
}

/// Publishes as a relay does. Returns how many calls had an event that was not delivered.
pub(crate) async fn publish_all(publisher: &NatsPublisher, events: &[StoredEvent]) -> usize {
    let (patience, pause) = (Duration::from_secs(60), Duration::from_millis(20));
    let repeats = publishing::publish_all(publisher, events, patience, pause);
    repeats.await.calls
}
