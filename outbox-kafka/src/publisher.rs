//! The publisher.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{Capabilities, OrderClass, Outcome, Publisher, Result, Scope, StoredEvent};
use tokio::{
    sync::RwLock,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    batch::Batch,
    check,
    cluster::Cluster,
    config::KafkaConfig,
    error,
    lease::Pool,
    properties::{self, Batching},
    wire,
};

/// How much of a call's time is kept for taking back what is not answered.
const END_MAX: Duration = Duration::from_millis(500);

/// Publishes events to Kafka. The crate's page tells mapping and guarantees.
///
/// Calls may run at the same time, each with a producer of its own. Needs a tokio runtime with
/// time.
pub struct KafkaPublisher {
    config: Arc<KafkaConfig>,
    cluster: Cluster,
    pool: Pool,
    /// Held for reading by each call, so that `close` can wait for all.
    calls: RwLock<()>,
    closed: CancellationToken,
}

impl KafkaPublisher {
    /// Checks the settings. Nothing is sent: unreachable brokers show in `check` and `publish`, and
    /// so do files of certificates that can't be read.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub fn new(config: KafkaConfig) -> Result<Self> {
        config.validate()?;
        let secrets: Arc<[String]> = properties::secrets(&config).into();
        let config = Arc::new(config);
        Ok(Self {
            cluster: Cluster::new(Arc::clone(&config), Arc::clone(&secrets)),
            pool: Pool::new(Arc::clone(&config), secrets),
            config,
            calls: RwLock::new(()),
            closed: CancellationToken::new(),
        })
    }

    /// Sends what can be sent, and what was refused for a neighbour's sake once more alone.
    ///
    /// # Errors
    /// Why the rest was not sent.
    async fn send_all(
        &self,
        events: &[StoredEvent],
        stop: Instant,
        batch: &mut Batch<'_>,
    ) -> Result<()> {
        let _call = self.calls.read().await;
        if self.pool.take_complaints() {
            self.cluster.forget_all();
        }
        // Names that are none are nothing to ask for.
        let named = events
            .iter()
            .filter(|event| wire::check_topic(&event.topic).is_ok());
        let topics: BTreeSet<&str> = named.map(|event| event.topic.as_str()).collect();
        let refused = if topics.is_empty() {
            BTreeMap::new()
        } else {
            self.cluster.prepare(&topics, stop).await?
        };
        for (index, event) in events.iter().enumerate() {
            if let Err(error) = self.validate(event) {
                batch.settle(index, Outcome::Rejected(error));
            } else if let Some(code) = refused.get(&event.topic) {
                batch.settle(index, error::topic(*code, &event.topic));
            }
        }
        let open = batch.open();
        if open.is_empty() {
            return Ok(());
        }
        batch.take_lease(Some(self.pool.lease(self.cluster.batching()).await?));
        batch.send(&open, &self.config.encoding).await?;
        let again = batch.take_again();
        if again.is_empty() {
            return Ok(());
        }
        batch.take_lease(None);
        batch.take_lease(Some(self.pool.lease(Batching::Single).await?));
        batch.send(&again, &self.config.encoding).await
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    fn name(&self) -> &'static str {
        "kafka"
    }

    /// `message_bytes_max` is the setting, or Kafka's default; the limit of each topic is known
    /// once something was published to it.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: false,
            null_payload: true,
            message_bytes_max: Some(self.cluster.message_bytes_usual()),
        }
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        wire::validate(
            event,
            &self.config.encoding,
            self.cluster.message_bytes_max(&event.topic),
            self.config.in_flight_bytes_max,
        )
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        if events.is_empty() {
            return Vec::new();
        }
        let mut batch = Batch::new(events);
        let deadline = Instant::now() + self.config.publish_timeout;
        let stop = deadline - END_MAX.min(self.config.publish_timeout / 5);
        let ended = tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(error::closed()),
            ended = self.send_all(events, stop, &mut batch) => ended,
            () = sleep_until(stop) => Err(batch.late()),
        };
        if let Some(code) = batch.fatal() {
            metrics::counter!("outbox_kafka_producers_ended_total").increment(1);
            warn!(
                ?code,
                "a producer ended itself; the next call makes a new one"
            );
        }
        batch.take_back(deadline).await;
        let everywhere = ended
            .as_ref()
            .is_err_and(|error| error.failure_scope() == Scope::Destination);
        if everywhere {
            self.cluster.forget_all();
        } else {
            for topic in batch.doubtful_topics() {
                self.cluster.forget(topic);
            }
        }
        batch.finish(ended)
    }

    async fn check(&self) -> Result<()> {
        check::check(&self.cluster).await
    }

    async fn close(&self, grace: Duration) {
        // Whether the calls ended by themselves or not, they end now.
        let _ = timeout(grace, self.calls.write()).await;
        self.closed.cancel();
        self.pool.close();
        self.cluster.close();
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
