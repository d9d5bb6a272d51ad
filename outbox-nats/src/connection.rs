//! The connection: made when it is needed, shared by the calls, replaced when it is of no use.
//!
//! The driver reconnects by itself and then sends what still waits in its queue, while what it had
//! already written into the lost connection is gone: e1 lost, e2 stored, order broken. So each of its
//! clients is held to one connection here. When that breaks the client dies with its queue, and what
//! was not answered is in doubt as a whole; the next call makes a new client.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, ConnectOptions, Event, ReconnectToServer, ServerAddr, ServerError};
use outbox_core::{Error, ErrorKind, Result};
use tokio::{sync::broadcast, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info};

use crate::{
    config::{NatsConfig, Server},
    error::{self, CONNECT, Denied},
    request::Router,
    tls,
};

/// What `max_payload` is unless somebody changed it.
const MESSAGE_BYTES_DEFAULT: usize = 1 << 20;
/// Nobody can listen there: where a client is sent that looks for a second connection.
const NOWHERE: &str = "nats://127.0.0.1:0";
/// How often a connection without traffic is tried; after the third silence it is given up.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Denials that a slow call may leave unread.
const DENIALS_MAX: usize = 64;
/// Room in the driver's queue beside the events: subscriptions and questions of several calls.
const QUEUE_SPARE: usize = 64;

/// Makes connections to one cluster and keeps one for all calls.
pub(crate) struct Connector {
    config: NatsConfig,
    servers: Vec<Server>,
    slot: Mutex<Slot>,
    /// Held while a connection is made, so that many calls make only one.
    making: tokio::sync::Mutex<()>,
    message_bytes_max: AtomicUsize,
}

#[derive(Default)]
struct Slot {
    open: Option<Link>,
    generation: u64,
    /// Which server is tried first.
    next_server: usize,
}

/// A call's share in a connection.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) router: Arc<Router>,
    /// Cancelled when the connection is gone.
    broken: CancellationToken,
    /// Cancelled when the server says that this user may not hear answers.
    pub(crate) deaf: CancellationToken,
    /// What the server says that this user may not.
    pub(crate) denials: broadcast::Sender<Denied>,
    /// The server wants its clients to go elsewhere; answers still come.
    leaving: Arc<AtomicBool>,
    /// Tells connections apart, so that a call discards only the one it has met.
    pub(crate) generation: u64,
    /// Ends the router with the last share; it would keep the connection open.
    _ends: Arc<DropGuard>,
}

impl Link {
    fn is_good(&self) -> bool {
        !self.broken.is_cancelled() && !self.leaving.load(Ordering::Relaxed)
    }
}

impl Connector {
    /// Prepares; reads the files of credentials and certificates to see that they are some. No other
    /// I/O.
    pub(crate) fn new(config: &NatsConfig) -> Result<Self> {
        let connector = Self {
            servers: config.servers()?,
            slot: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            message_bytes_max: AtomicUsize::new(MESSAGE_BYTES_DEFAULT),
            config: config.clone(),
        };
        tls::check(config.ca_file.as_deref())?;
        connector.signed_in(ConnectOptions::new(), &connector.servers[0])?;
        Ok(connector)
    }

    /// The largest message that the server takes, headers counted, as far as it is known; or the
    /// setting, where that is less.
    pub(crate) fn message_bytes_max(&self) -> usize {
        let server = self.message_bytes_max.load(Ordering::Relaxed);
        self.config.message_bytes_max.unwrap_or(server).min(server)
    }

    /// A share in the open connection, or in a new one.
    ///
    /// # Errors
    /// Nothing was sent. Ends within the connect timeout for each server. Cancellation leaves no
    /// half-made connection behind.
    pub(crate) async fn link(&self) -> Result<Link> {
        if let Some(link) = self.open() {
            return Ok(link);
        }
        let _making = self.making.lock().await;
        if let Some(link) = self.open() {
            return Ok(link);
        }
        let first = self.slot().next_server;
        let mut failure = None;
        for step in 0..self.servers.len() {
            let number = (first + step) % self.servers.len();
            match self.connect(&self.servers[number]).await {
                Ok(link) => return Ok(self.keep(link, number)),
                Err(error) => failure = Some(error),
            }
        }
        // The last server's failure stands for all.
        Err(failure.unwrap_or_else(|| {
            Error::new(
                ErrorKind::Internal,
                CONNECT,
                "there is no server to connect to",
            )
        }))
    }

    fn open(&self) -> Option<Link> {
        self.slot().open.clone().filter(Link::is_good)
    }

    fn keep(&self, mut link: Link, server: usize) -> Link {
        let name = self.servers[server].name();
        let mut slot = self.slot();
        slot.generation += 1;
        slot.next_server = server;
        link.generation = slot.generation;
        slot.open = Some(link.clone());
        // Who publishes tells of an outage and of its end (I8).
        if slot.generation == 1 {
            info!(server = %name, "connected");
        } else {
            debug!(server = %name, "connected again");
        }
        link
    }

    /// Forgets this connection, if it is still the current one, and begins with another server.
    pub(crate) fn discard(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation && slot.open.take().is_some() {
            slot.next_server = (slot.next_server + 1) % self.servers.len();
            debug!("connection discarded");
        }
    }

    /// Forgets whatever connection there is.
    pub(crate) fn close(&self) {
        self.slot().open = None;
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, server: &Server) -> Result<Link> {
        let named = |error: Error| error.context("server", server.name());
        let (broken, deaf) = (CancellationToken::new(), CancellationToken::new());
        let (denials, _) = broadcast::channel(DENIALS_MAX);
        let leaving = Arc::new(AtomicBool::new(false));
        let options = ConnectOptions::new()
            .name("outbox")
            .connection_timeout(self.config.connect_timeout)
            .ping_interval(PING_INTERVAL)
            .client_capacity(self.config.in_flight_events_max + QUEUE_SPARE)
            .custom_inbox_prefix(&self.config.inbox_prefix)
            .ignore_discovered_servers()
            .event_callback(listener(&broken, &deaf, &denials, &leaving));
        let options = tls::configured(options, self.config.ca_file.as_deref());
        let options = self.signed_in(options, server).map_err(named)?;
        let (options, addresses) = once(options, server.address.clone());
        // For the name's resolution too, which the driver does not limit.
        let connecting = timeout(self.config.connect_timeout, options.connect(addresses));
        let client = connecting
            .await
            .map_err(|_| error::timeout(CONNECT))
            .and_then(|connected| {
                connected.map_err(|error| error::connecting(&error, server.sign_in.secret()))
            })
            .map_err(named)?;
        let told = client.server_info();
        if !told.headers {
            let what = "the server takes no headers: it needs NATS 2.10 or newer";
            return Err(named(Error::new(ErrorKind::Protocol, CONNECT, what)));
        }
        self.message_bytes_max
            .store(told.max_payload, Ordering::Relaxed);
        let ended = CancellationToken::new();
        let router = Router::start(&client, ended.clone()).await.map_err(named)?;
        Ok(Link {
            client,
            router,
            broken,
            deaf,
            denials,
            leaving,
            generation: 0,
            _ends: Arc::new(ended.drop_guard()),
        })
    }

    fn signed_in(&self, options: ConnectOptions, server: &Server) -> Result<ConnectOptions> {
        if let Some(path) = &self.config.credentials_file {
            let text = read("credentials_file", path)?;
            return options.credentials(&text).map_err(|_| {
                wrong("the file has not the form of credentials: a JWT and a seed, as nsc writes them")
                    .context("setting", "credentials_file")
            });
        }
        if let Some(path) = &self.config.nkey_file {
            let text = read("nkey_file", path)?;
            let seed = text
                .lines()
                .map(str::trim)
                .find(|line| line.starts_with("SU"));
            let seed = seed.ok_or_else(|| {
                wrong("the file has no seed of a user, which begins with SU")
                    .context("setting", "nkey_file")
            })?;
            return Ok(options.nkey(seed.to_owned()));
        }
        let sign_in = server.sign_in.clone();
        Ok(match (sign_in.user_and_password, sign_in.token) {
            (Some((user, password)), _) => options.user_and_password(user, password),
            (None, Some(token)) => options.token(token),
            (None, None) => options,
        })
    }
}

/// Lets the client connect to this address once and never again.
fn once(options: ConnectOptions, address: ServerAddr) -> (ConnectOptions, Vec<ServerAddr>) {
    let mut addresses = vec![address.clone()];
    addresses.extend(NOWHERE.parse::<ServerAddr>());
    let nowhere = addresses.last().cloned().unwrap_or_else(|| address.clone());
    let is_used = AtomicBool::new(false);
    let options = options
        // Counted from the last connection that came about. The one attempt leads nowhere; the next
        // is over the limit, and the client ends.
        .max_reconnects(1)
        .reconnect_to_server_callback(move |_, _| {
            let first = !is_used.swap(true, Ordering::Relaxed);
            let target = ReconnectToServer {
                addr: if first {
                    address.clone()
                } else {
                    nowhere.clone()
                },
                delay: Some(Duration::ZERO),
            };
            std::future::ready(Some(target))
        });
    (options, addresses)
}

/// Listens to what the driver tells of the connection.
fn listener(
    broken: &CancellationToken,
    deaf: &CancellationToken,
    denials: &broadcast::Sender<Denied>,
    leaving: &Arc<AtomicBool>,
) -> impl Fn(Event) -> std::future::Ready<()> + Send + Sync + 'static {
    let (broken, deaf) = (broken.clone(), deaf.clone());
    let (denials, leaving) = (denials.clone(), Arc::clone(leaving));
    move |event| {
        match event {
            Event::Disconnected | Event::Closed => broken.cancel(),
            Event::LameDuckMode => leaving.store(true, Ordering::Relaxed),
            Event::ServerError(ServerError::Other(line)) => {
                match Denied::read(&line) {
                    Some(Denied::Answers) => deaf.cancel(),
                    // Nobody listens between the calls.
                    Some(denied) => drop(denials.send(denied)),
                    None => {}
                }
            }
            _ => {}
        }
        std::future::ready(())
    }
}

fn read(setting: &'static str, path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        wrong("the file can't be read")
            .context("setting", setting)
            .context("path", path.display())
            .context("reason", error.kind())
    })
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, CONNECT, what)
}
