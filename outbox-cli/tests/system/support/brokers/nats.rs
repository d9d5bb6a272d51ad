//! Streams of NATS.

use async_nats::jetstream::{self, consumer, stream};
use async_trait::async_trait;
use futures::StreamExt as _;
use outbox_testkit::{
    invariants::Sighting,
    servers::{Nats, Server},
};

use super::{Broker, sighting};

const STREAM: &str = "EVENTS";
const MESSAGES_PER_FETCH: usize = 5_000;

pub(super) struct Streams(pub(super) Nats);

impl Streams {
    async fn context(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(self.0.url()).await.unwrap())
    }
}

#[async_trait]
impl Broker for Streams {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn prepare(&mut self, topic: &str) {
        let config = stream::Config {
            name: STREAM.to_owned(),
            subjects: vec![topic.to_owned()],
            ..stream::Config::default()
        };
        self.context().await.create_stream(config).await.unwrap();
    }

    async fn read(&mut self, topic: &str) -> Vec<Sighting> {
        let stream = self.context().await.get_stream(STREAM).await.unwrap();
        let config = consumer::pull::Config {
            ack_policy: consumer::AckPolicy::None,
            ..consumer::pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await.unwrap();
        let mut seen = vec![];
        loop {
            let before = seen.len();
            let fetch = consumer.fetch().max_messages(MESSAGES_PER_FETCH);
            let mut messages = fetch.messages().await.unwrap();
            while let Some(message) = messages.next().await {
                let message = message.unwrap();
                let headers = message.headers.as_ref().unwrap();
                seen.push(sighting(topic, Some(message.payload.clone()), |name| {
                    let name = if name == "outbox-key" {
                        "Outbox-Key"
                    } else {
                        name
                    };
                    headers.get(name).map(|value| value.as_str().to_owned())
                }));
            }
            if seen.len() - before < MESSAGES_PER_FETCH {
                return seen;
            }
        }
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.0
    }
}
