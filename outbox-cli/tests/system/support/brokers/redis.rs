//! Streams of Redis.

use async_trait::async_trait;
use outbox_testkit::{
    invariants::Sighting,
    servers::{Redis, Server},
};

use super::Broker;
use crate::support::read;

pub(super) struct Streams(pub(super) Redis);

#[async_trait]
impl Broker for Streams {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn url(&self) -> String {
        self.0.url()
    }

    /// The first entry makes the stream.
    async fn prepare(&mut self, _topic: &str) {}

    async fn read(&mut self, topic: &str) -> Vec<Sighting> {
        let entries = read(&self.0.url(), topic).await;
        entries.iter().map(|entry| entry.sighting(topic)).collect()
    }

    fn server(&mut self) -> &mut dyn Server {
        &mut self.0
    }
}
