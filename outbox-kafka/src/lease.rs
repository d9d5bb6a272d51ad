//! The producers: each serves one call at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_core::{Result, StoredEvent};
use rdkafka::{
    config::ClientConfig,
    error::KafkaError,
    message::OwnedHeaders,
    producer::{BaseRecord, Producer as _, PurgeConfig, ThreadedProducer},
    types::RDKafkaErrorCode as Code,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::spawn_blocking,
};
use tracing::warn;

use crate::{
    config::{KafkaConfig, wrong},
    context::{Listener, Ticket},
    error,
    properties::{self, Batching},
};

/// A client of librdkafka with a thread that serves its events.
pub(crate) type Native = ThreadedProducer<Listener>;

/// Makes a client. Off the runtime: it reads files of certificates.
pub(crate) async fn make(properties: ClientConfig, listener: Listener) -> Result<Native> {
    let made = spawn_blocking(move || properties.create_with_context(listener)).await;
    match made {
        Ok(Ok(native)) => Ok(native),
        Ok(Err(KafkaError::ClientCreation(text))) => {
            // librdkafka's words, as of a file that is not there.
            Err(wrong("librdkafka refuses the settings").context("reason", text))
        }
        Ok(Err(_)) => Err(wrong("librdkafka refuses the settings")),
        Err(_) => Err(error::internal("a client could not be made")),
    }
}

/// Ends a client on a thread of its own, since that blocks: what it still holds is taken back. The
/// answer comes when nothing of it is sent any more.
pub(crate) fn retire(native: Native) -> oneshot::Receiver<()> {
    let (done, taken_back) = oneshot::channel();
    let ending = move || {
        native.purge(PurgeConfig::default().queue().inflight());
        let _ = done.send(());
        drop(native);
    };
    let thread = std::thread::Builder::new().name("outbox-kafka-end".to_owned());
    if let Err(error) = thread.spawn(ending) {
        // The client was dropped with the closure, which blocks for a moment.
        warn!(%error, "no thread to end a producer on");
    }
    taken_back
}

/// At most so many producers, made when they are needed and kept.
pub(crate) struct Pool {
    config: Arc<KafkaConfig>,
    secrets: Arc<[String]>,
    permits: Arc<Semaphore>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    idle: Vec<(Native, Batching)>,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(config: Arc<KafkaConfig>, secrets: Arc<[String]>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(config.producers_max)),
            config,
            secrets,
            kept: Arc::default(),
        }
    }

    /// A producer for one call; waits until there is one.
    ///
    /// # Errors
    /// Nothing was sent.
    pub(crate) async fn lease(&self, batching: Batching) -> Result<Lease> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| error::closed())?;
        let native = if let Some(native) = self.take(batching) {
            native
        } else {
            let listener = Listener::new(Arc::clone(&self.secrets));
            make(properties::producer(&self.config, batching), listener).await?
        };
        Ok(Lease {
            native: Some(native),
            batching,
            kept: Arc::clone(&self.kept),
            outstanding: 0,
            _permit: permit,
        })
    }

    /// The one that was used last; those that batch otherwise are of no use any more.
    fn take(&self, batching: Batching) -> Option<Native> {
        loop {
            let (native, its) = lock(&self.kept).idle.pop()?;
            if its == batching {
                return Some(native);
            }
            drop(retire(native));
        }
    }

    /// Whether an idle producer has lost a broker since it was asked last.
    pub(crate) fn take_complaints(&self) -> bool {
        let kept = lock(&self.kept);
        let mut complained = false;
        for (native, _) in &kept.idle {
            complained |= native.client().context().take_complaint().is_some();
        }
        complained
    }

    /// Ends the idle ones; those in use end with their calls.
    pub(crate) fn close(&self) {
        let mut kept = lock(&self.kept);
        kept.closed = true;
        for (native, _) in kept.idle.drain(..) {
            drop(retire(native));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of handing a record over.
pub(crate) enum Handed {
    /// An answer will come.
    Over,
    /// The queue is full: some answers must come first.
    Full,
    /// Nothing of it was taken.
    Refused(Code),
}

/// One call's producer. Dropping it gives the producer back, or ends it when it still holds
/// records or has ended itself.
pub(crate) struct Lease {
    native: Option<Native>,
    batching: Batching,
    kept: Arc<Mutex<Kept>>,
    outstanding: usize,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    pub(crate) fn batching(&self) -> Batching {
        self.batching
    }

    /// Records whose answers are missing.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// An answer has come.
    pub(crate) fn answered(&mut self) {
        debug_assert!(self.outstanding > 0, "an answer for a record");
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Hands a record over; does not block.
    pub(crate) fn send(
        &mut self,
        event: &StoredEvent,
        headers: OwnedHeaders,
        ticket: Ticket,
    ) -> Handed {
        let Some(native) = &self.native else {
            return Handed::Refused(Code::PurgeQueue);
        };
        let mut record = BaseRecord::with_opaque_to(&event.topic, Box::new(ticket));
        record.key = event.key.as_deref();
        record.payload = event.payload.as_deref();
        record.headers = Some(headers);
        match native.send(record) {
            Ok(()) => {
                self.outstanding += 1;
                Handed::Over
            }
            Err((error, _)) => match error.rdkafka_error_code() {
                Some(Code::QueueFull) => Handed::Full,
                code => Handed::Refused(code.unwrap_or(Code::Unknown)),
            },
        }
    }

    /// Why the producer has ended itself, if it has.
    pub(crate) fn fatal(&self) -> Option<Code> {
        let native = self.native.as_ref()?;
        native.client().fatal_error().map(|(code, _)| code)
    }

    /// What librdkafka complained about last.
    pub(crate) fn take_complaint(&self) -> Option<(Code, String)> {
        self.native.as_ref()?.client().context().take_complaint()
    }

    /// Takes back what is not answered, for good.
    pub(crate) fn retire(&mut self) -> Option<oneshot::Receiver<()>> {
        self.native.take().map(retire)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let spoilt = self.outstanding > 0 || self.fatal().is_some();
        let Some(native) = self.native.take() else {
            return;
        };
        let mut kept = lock(&self.kept);
        if spoilt || kept.closed || self.batching == Batching::Single {
            drop(retire(native));
        } else {
            kept.idle.push((native, self.batching));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const BYTES: Batching = Batching::Bytes(1000);

    /// Nobody listens there; clients of librdkafka are made without asking.
    fn pool() -> Pool {
        let mut config = KafkaConfig::new("127.0.0.1:1");
        config.producers_max = 1;
        Pool::new(Arc::new(config), Arc::new([]))
    }

    fn idle(pool: &Pool) -> usize {
        lock(&pool.kept).idle.len()
    }

    #[tokio::test]
    async fn i8_no_more_producers_than_the_setting_says() {
        let pool = pool();
        let lease = pool.lease(BYTES).await.unwrap();
        let waits = timeout(Duration::from_millis(100), pool.lease(BYTES)).await;
        assert!(waits.is_err(), "a second producer");
        drop(lease);
        drop(pool.lease(BYTES).await.unwrap());
        assert_eq!(idle(&pool), 1);
    }

    #[tokio::test]
    async fn only_a_producer_that_is_clean_is_kept() {
        let pool = pool();
        let mut lease = pool.lease(BYTES).await.unwrap();
        lease.outstanding = 1;
        drop(lease);
        assert_eq!(idle(&pool), 0, "it holds a record");
        drop(pool.lease(Batching::Single).await.unwrap());
        assert_eq!(idle(&pool), 0, "it is for one call");
        drop(pool.lease(BYTES).await.unwrap());
        assert_eq!(idle(&pool), 1);
        let other = pool.lease(Batching::Bytes(500)).await.unwrap();
        assert_eq!(idle(&pool), 0, "it batches otherwise");
        pool.close();
        drop(other);
        assert_eq!(idle(&pool), 0, "the pool is closed");
    }
}
