//! The connection: made when it is needed, shared by the calls, replaced when it is of no use.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox_core::Result;
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use crate::{
    config::RedisConfig,
    error::{self, CONNECT},
    tls,
};

/// What `proto-max-bulk-len` is unless somebody changed it.
const FIELD_BYTES_DEFAULT: usize = 512 << 20;
/// A connection that rested longer is tried with a PING first: firewalls and restarts cut idle
/// connections, and an event sent into a dead one would be in doubt.
const REST_MAX: Duration = Duration::from_secs(1);

/// Makes connections to one server and keeps one for all calls.
///
/// The driver's `ConnectionManager` is not used: it retries by its own rules, answers while it
/// reconnects in the background with errors that do not tell whether anything was sent, and can't
/// be told to leave a server that went read-only. A `MultiplexedConnection` keeps pairing answers
/// with requests when a caller goes away; calls clone it, and the last clone closes it.
pub(crate) struct Connector {
    client: Client,
    driver: AsyncConnectionConfig,
    connect_timeout: Duration,
    address: String,
    password: Option<String>,
    slot: Mutex<Slot>,
    /// Held while a connection is made or tried, so that many calls make only one.
    making: tokio::sync::Mutex<()>,
    field_bytes_max: AtomicUsize,
    field_bytes_fixed: bool,
}

#[derive(Default)]
struct Slot {
    open: Option<MultiplexedConnection>,
    /// When a call last took or gave back its share.
    used: Option<Instant>,
    generation: u64,
}

impl Slot {
    fn link(&mut self, rest_max: Duration) -> Option<Link> {
        if self.used.is_none_or(|used| used.elapsed() >= rest_max) {
            return None;
        }
        self.used = Some(Instant::now());
        self.open.clone().map(|connection| Link {
            connection,
            generation: self.generation,
        })
    }
}

/// A call's share in a connection.
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    /// Tells connections apart, so that a call discards only the one it has met.
    pub(crate) generation: u64,
}

impl Connector {
    /// Prepares; reads a file of certificates where one is set, no other I/O.
    pub(crate) fn new(config: &RedisConfig) -> Result<Self> {
        let info = config.connection_info()?;
        // Without it Nagle's algorithm holds back the tail of each pipeline.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let password = info.redis_settings().password().map(ToOwned::to_owned);
        let address = info.addr().to_string();
        let client = tls::client(info, config.ca_file.as_deref())
            .map_err(|error| error.context("server", &address))?;
        Ok(Self {
            client,
            // The driver's 500 ms for an answer would give up on commands that do land. Deadlines
            // are kept by the callers here.
            driver: AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_connection_timeout(None),
            connect_timeout: config.connect_timeout,
            address,
            password,
            slot: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            field_bytes_max: AtomicUsize::new(
                config.field_bytes_max.unwrap_or(FIELD_BYTES_DEFAULT),
            ),
            field_bytes_fixed: config.field_bytes_max.is_some(),
        })
    }

    /// The largest field that the server takes, as far as it is known.
    pub(crate) fn field_bytes_max(&self) -> usize {
        self.field_bytes_max.load(Ordering::Relaxed)
    }

    /// A share in the open connection, or in a new one.
    ///
    /// # Errors
    /// Nothing was sent. Ends within about twice the connect timeout. Cancellation leaves no
    /// half-made connection behind.
    pub(crate) async fn link(&self) -> Result<Link> {
        if let Some(link) = self.slot().link(REST_MAX) {
            return Ok(link);
        }
        let _making = self.making.lock().await;
        if let Some(link) = self.slot().link(REST_MAX) {
            return Ok(link);
        }
        let rested = self.slot().link(Duration::MAX);
        if let Some(mut link) = rested {
            if self.probe(&mut link.connection).await.is_ok() {
                return Ok(link);
            }
            self.discard(link.generation);
        }
        let connecting = timeout(self.connect_timeout, self.connect());
        let connection = connecting
            .await
            .unwrap_or_else(|_| Err(error::timeout(CONNECT)))
            .map_err(|error| error.context("server", &self.address))?;
        let mut slot = self.slot();
        slot.generation += 1;
        // A server that is left after each answer, as a replica is, would be a line a probe (I8); who
        // publishes tells of an outage and of its end.
        if slot.generation == 1 {
            info!(server = %self.address, "connected");
        } else {
            debug!(server = %self.address, "connected again");
        }
        slot.open = Some(connection.clone());
        slot.used = Some(Instant::now());
        Ok(Link {
            connection,
            generation: slot.generation,
        })
    }

    /// Takes note that the connection has just answered.
    pub(crate) fn touch(&self) {
        self.slot().used = Some(Instant::now());
    }

    /// Forgets this connection, if it is still the current one; calls that share it end with it.
    pub(crate) fn discard(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation && slot.open.take().is_some() {
            debug!(server = %self.address, "connection discarded");
        }
    }

    /// Forgets whatever connection there is.
    pub(crate) fn close(&self) {
        self.slot().open = None;
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server for a sign of life on this connection, within the connect timeout.
    pub(crate) async fn probe(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        timeout(self.connect_timeout, ping(connection))
            .await
            .map_err(|_| error::timeout(CONNECT))?
            .map_err(|error| error::connecting(&error, self.password.as_deref()))
            .map_err(|error| error.context("server", &self.address))
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&self.driver);
        let mut connection = connecting
            .await
            .map_err(|error| error::connecting(&error, self.password.as_deref()))?;
        // A server that wants a password and got none cuts the connection at the first long command,
        // before it says why.
        ping(&mut connection)
            .await
            .map_err(|error| error::connecting(&error, self.password.as_deref()))?;
        if !self.field_bytes_fixed {
            let limit = setting(&mut connection, "proto-max-bulk-len").await;
            let limit = limit.and_then(|text| text.parse().ok());
            self.field_bytes_max
                .store(limit.unwrap_or(FIELD_BYTES_DEFAULT), Ordering::Relaxed);
        }
        Ok(connection)
    }
}

/// Whether the server answers; a user who may not run PING has got an answer too.
async fn ping(connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    match redis::cmd("PING").exec_async(connection).await {
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        answer => answer,
    }
}

/// A setting of the server, where it lets this user read it.
pub(crate) async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg(name);
    let pair: Vec<String> = command.query_async(connection).await.ok()?;
    pair.into_iter().nth(1)
}
