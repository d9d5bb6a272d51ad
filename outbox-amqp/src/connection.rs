//! The connection: made when it is needed, shared by the calls, replaced when it is of no use.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lapin::{tcp::OwnedTLSConfig, uri::AMQPUri};
use outbox_core::Result;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info};

use crate::{
    config::{AmqpConfig, address},
    declare::Declarations,
    error::{self, CONNECT},
    open::Open,
    tls,
};

/// What RabbitMQ offers unless somebody changed it.
const FRAME_BYTES_DEFAULT: usize = 131_072;
/// A connection that rested longer is asked for a sign of life first: an event sent into a dead one
/// would be in doubt.
const REST_MAX: Duration = Duration::from_secs(1);
/// The pause after a first failure to connect; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Makes connections to one server and keeps one for all calls.
///
/// The driver's recovery is not used: it sends nothing again and does not tell what was in doubt, and
/// waiting for it would have no end.
pub(crate) struct Connector {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    connect_timeout: Duration,
    declarations: Declarations,
    address: String,
    slot: Mutex<Slot>,
    /// Held while a connection is made or tried, so that many calls make only one.
    making: tokio::sync::Mutex<()>,
    frame_bytes_max: AtomicUsize,
}

#[derive(Default)]
struct Slot {
    open: Option<Arc<Open>>,
    /// When it last gave a sign of life.
    used: Option<Instant>,
    generation: u64,
    failures: u32,
    /// Not before then is another connection tried.
    next: Option<Instant>,
}

impl Slot {
    fn link(&mut self, rest_max: Duration) -> Option<Link> {
        if self.used.is_none_or(|used| used.elapsed() >= rest_max) {
            return None;
        }
        self.any()
    }

    fn any(&mut self) -> Option<Link> {
        let open = self.open.clone().filter(|open| open.is_alive())?;
        Some(Link {
            open,
            generation: self.generation,
        })
    }

    fn failed(&mut self) {
        let pause = PAUSE_MIN * 2_u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.next = Some(Instant::now() + pause.min(PAUSE_MAX));
    }
}

/// A call's share in a connection.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) open: Arc<Open>,
    /// Tells connections apart, so that a call discards only the one it has met.
    pub(crate) generation: u64,
}

impl Connector {
    /// Prepares; reads a file of certificates where one is set, no other I/O.
    pub(crate) fn new(config: &AmqpConfig) -> Result<Self> {
        let uri = config.uri()?;
        Ok(Self {
            tls: tls::config(&uri, config.ca_file.as_deref())?,
            connect_timeout: config.connect_timeout,
            declarations: Declarations::new(config),
            address: address(&uri),
            uri,
            slot: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            frame_bytes_max: AtomicUsize::new(FRAME_BYTES_DEFAULT),
        })
    }

    /// The largest frame that the server takes, as far as it is known.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max.load(Ordering::Relaxed)
    }

    /// A share in the open connection, or in a new one.
    ///
    /// # Errors
    /// Nothing was sent. Ends within about twice the connect timeout and a second. Cancellation
    /// leaves no half-made connection behind.
    pub(crate) async fn link(&self) -> Result<Link> {
        if let Some(link) = self.slot().link(REST_MAX) {
            return Ok(link);
        }
        let _making = self.making.lock().await;
        if let Some(link) = self.slot().link(REST_MAX) {
            return Ok(link);
        }
        let rested = self.slot().any();
        if let Some(link) = rested {
            // A blocked one answers nothing that is asked on it: the driver writes nothing. It is
            // kept, for a new one would not know of the alarm before it sent a message.
            if link.open.is_blocked() || self.probe(&link).await.is_ok() {
                return Ok(link);
            }
        }
        let next = self.slot().next;
        if let Some(next) = next {
            sleep_until(next).await;
        }
        let connecting = timeout(self.connect_timeout, self.connect());
        let connected = connecting
            .await
            .unwrap_or_else(|_| Err(error::timeout(CONNECT)));
        let mut slot = self.slot();
        let open = match connected {
            Ok(open) => Arc::new(open),
            Err(error) => {
                slot.failed();
                return Err(error.context("server", &self.address));
            }
        };
        slot.generation += 1;
        // A server that is left after each answer would be a line a probe (I8); who publishes tells
        // of an outage and of its end.
        if slot.generation == 1 {
            info!(server = %self.address, "connected");
        } else {
            debug!(server = %self.address, "connected again");
        }
        self.frame_bytes_max
            .store(open.frame_bytes_max(), Ordering::Relaxed);
        slot.failures = 0;
        slot.next = None;
        slot.open = Some(Arc::clone(&open));
        slot.used = Some(Instant::now());
        Ok(Link {
            open,
            generation: slot.generation,
        })
    }

    async fn connect(&self) -> Result<Open> {
        let (uri, tls) = (self.uri.clone(), self.tls.clone());
        tls::install_provider();
        let open = Open::connect(uri, tls, self.connect_timeout)
            .await
            .map_err(|error| error::connecting(&error, &self.uri.authority.userinfo.password))?;
        self.declarations.make(&open).await?;
        Ok(open)
    }

    /// Asks the server for a sign of life, within the connect timeout; without one the connection is
    /// discarded, also when the caller goes away meanwhile.
    ///
    /// # Errors
    /// It is discarded.
    pub(crate) async fn probe(&self, link: &Link) -> Result<()> {
        let mut doubt = Doubt(Some((self, link.generation)));
        let channel = timeout(self.connect_timeout, link.open.new_channel())
            .await
            .map_err(|_| error::timeout(CONNECT))?
            .map_err(|error| error::connecting(&error, &self.uri.authority.userinfo.password))?;
        link.open.give_back(channel);
        self.touch(link.generation);
        doubt.0 = None;
        Ok(())
    }

    /// Takes note that the connection has just answered.
    pub(crate) fn touch(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation {
            slot.used = Some(Instant::now());
        }
    }

    /// The next call asks for a sign of life before it uses this connection.
    pub(crate) fn distrust(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation {
            slot.used = None;
        }
    }

    /// Ends this connection, if it is still the current one; calls that share it end with it.
    pub(crate) fn discard(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation
            && let Some(open) = slot.open.take()
        {
            open.shut();
            debug!(server = %self.address, "connection discarded");
        }
    }

    /// Ends whatever connection there is, politely for no longer than this.
    pub(crate) async fn close(&self, patience: Duration) {
        let open = self.slot().open.take();
        if let Some(open) = open {
            open.close(patience).await;
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Discards a connection unless it is taken back.
struct Doubt<'a>(Option<(&'a Connector, u64)>);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some((connector, generation)) = self.0 {
            connector.discard(generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_between_failures_grow_to_a_cap() {
        let mut slot = Slot::default();
        let mut pauses = vec![];
        for _ in 0..40 {
            slot.failed();
            pauses.push(slot.next.unwrap() - Instant::now());
        }
        assert!(pauses[0] <= PAUSE_MIN);
        assert!(pauses[2] > PAUSE_MIN * 3);
        let last = *pauses.last().unwrap();
        assert!(last > PAUSE_MAX / 2 && last <= PAUSE_MAX, "{last:?}");
    }
}
