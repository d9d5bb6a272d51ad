//! A relay inside the test, where its publisher must fail in ways that no real server does.

use std::sync::Arc;

use outbox_core::{Error, ErrorKind, OutboxStore, Outcome, Relay, RelayConfig, Route, Scope};
use outbox_redis::{RedisConfig, RedisPublisher};
use outbox_testkit::faulty::FaultyPublisher;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A relay at work.
pub(crate) struct Inside {
    stop: CancellationToken,
    task: JoinHandle<outbox_core::Result<()>>,
}

impl Inside {
    pub(crate) fn start(store: Arc<dyn OutboxStore>, route: Route, config: RelayConfig) -> Self {
        let relay = Relay::builder(store).route(route).config(config).build();
        let stop = CancellationToken::new();
        let task = tokio::spawn(relay.unwrap().run(stop.clone()));
        Self { stop, task }
    }

    /// Stops it; it must end well.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic").expect("a clean end");
    }
}

/// The real publisher to this Redis, with faults on command.
pub(crate) fn faulty(redis_url: &str) -> Arc<FaultyPublisher> {
    faulty_with(RedisConfig::new(redis_url))
}

pub(crate) fn faulty_with(config: RedisConfig) -> Arc<FaultyPublisher> {
    let publisher = RedisPublisher::new(config).unwrap();
    Arc::new(FaultyPublisher::new(Arc::new(publisher)))
}

/// What a broker answers that refuses this one message now.
pub(crate) fn refused() -> Outcome {
    let error = Error::new(
        ErrorKind::Refused,
        "publish",
        "the test's broker refuses it",
    );
    Outcome::Failed(error.scope(Scope::Message))
}
