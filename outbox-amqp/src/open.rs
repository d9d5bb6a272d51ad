//! One open connection.

use std::{
    collections::BTreeSet,
    net::{Shutdown, TcpStream},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lapin::{
    AsyncTcpStream, Channel, Connection, ConnectionProperties, Error as DriverError,
    options::ConfirmSelectOptions,
    tcp::OwnedTLSConfig,
    uri::{AMQPScheme, AMQPUri},
};
use tokio::time::timeout;
use tracing::subscriber::NoSubscriber;

use crate::wire;

/// Channels kept for later calls.
const IDLE_MAX: usize = 8;
/// Names remembered of exchanges that work and of topics that did not.
const NAMES_MAX: usize = 1024;

/// A connection with its spare channels and what was learnt on it.
pub(crate) struct Open {
    connection: Connection,
    socket: Arc<Socket>,
    idle: Mutex<Vec<Channel>>,
    learnt: Mutex<Learnt>,
}

#[derive(Default)]
struct Learnt {
    /// Exchanges that took a message: they are there and may be written.
    exchanges: BTreeSet<String>,
    /// Topics of which a message was refused, and none taken since.
    suspects: BTreeSet<String>,
}

impl Learnt {
    fn goes_alone(&self, topic: &str) -> bool {
        let (exchange, _) = wire::address(topic);
        !self.exchanges.contains(exchange) || self.suspects.contains(topic)
    }

    fn trust(&mut self, topic: &str) {
        let (exchange, _) = wire::address(topic);
        self.suspects.remove(topic);
        if !self.exchanges.contains(exchange) {
            remember(&mut self.exchanges, exchange);
        }
    }

    fn suspect(&mut self, topic: &str) {
        remember(&mut self.suspects, topic);
    }
}

/// A second handle of the connection's socket: a connection whose server is silent could not be
/// closed otherwise, since the driver waits for the server's good-bye, and its thread with it.
#[derive(Default)]
struct Socket(Mutex<SocketState>);

#[derive(Default)]
struct SocketState {
    handle: Option<TcpStream>,
    given_up: bool,
}

impl Socket {
    fn hold(&self, handle: TcpStream) {
        let mut state = lock(&self.0);
        if state.given_up {
            // An error means that it is closed already.
            let _ = handle.shutdown(Shutdown::Both);
        }
        state.handle = Some(handle);
    }

    fn shut(&self) {
        let mut state = lock(&self.0);
        state.given_up = true;
        if let Some(handle) = state.handle.take() {
            // As above.
            let _ = handle.shutdown(Shutdown::Both);
        }
    }
}

/// Ends a connection that is being made when nobody waits for it any more.
struct Attempt(Option<Arc<Socket>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            socket.shut();
        }
    }
}

impl Open {
    /// Connects and signs in. Cancellation leaves nothing behind.
    ///
    /// # Errors
    /// Nothing was sent.
    pub(crate) async fn connect(
        uri: AMQPUri,
        tls: OwnedTLSConfig,
        connect_timeout: Duration,
    ) -> Result<Self, DriverError> {
        let socket = Arc::new(Socket::default());
        let mut attempt = Attempt(Some(Arc::clone(&socket)));
        let held = Arc::clone(&socket);
        let properties =
            ConnectionProperties::default().with_connection_name("outbox relay".into());
        let runtime = lapin::runtime::default_runtime()?;
        let reactor = runtime.clone();
        let connect = async move |uri: AMQPUri, _| {
            silence_this_thread();
            let connecting = async {
                let host = (uri.authority.host.as_str(), uri.authority.port);
                let addresses: Vec<_> = tokio::net::lookup_host(host).await?.collect();
                let stream = AsyncTcpStream::connect(&reactor, addresses).await?;
                if let AsyncTcpStream::Plain(stream) = &stream {
                    let handle = stream.get_ref().as_fd().try_clone_to_owned()?;
                    held.hold(handle.into());
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => stream.into_tls(&uri.authority.host, tls.as_ref()).await,
                }
            };
            let limited = timeout(connect_timeout, connecting).await;
            let timed_out = |_| Err(std::io::ErrorKind::TimedOut.into());
            limited.unwrap_or_else(timed_out).map_err(DriverError::from)
        };
        let connection = Connection::connector(uri, runtime, connect, properties).await?;
        attempt.0 = None;
        Ok(Self {
            connection,
            socket,
            idle: Mutex::default(),
            learnt: Mutex::default(),
        })
    }

    /// The largest frame that both sides take.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        usize::try_from(self.connection.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    /// Whether the driver still has it; a server that is gone without a word is not noticed.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether the server said that it reads no messages, for an alarm of memory or disk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// A spare channel, or a new one.
    pub(crate) async fn channel(&self) -> Result<Channel, DriverError> {
        loop {
            let spare = lock(&self.idle).pop();
            match spare {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => return self.new_channel().await,
            }
        }
    }

    /// Opens a channel with confirmations: the server must answer for that.
    pub(crate) async fn new_channel(&self) -> Result<Channel, DriverError> {
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }

    /// A channel for other things than publishing.
    pub(crate) async fn plain_channel(&self) -> Result<Channel, DriverError> {
        self.connection.create_channel().await
    }

    /// Keeps a channel on which nothing is in flight.
    pub(crate) fn give_back(&self, channel: Channel) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX && channel.status().connected() {
            idle.push(channel);
        }
    }

    /// Whether a message for the topic must not be in flight together with others: what it could
    /// do to the channel would leave them in doubt.
    pub(crate) fn goes_alone(&self, topic: &str) -> bool {
        lock(&self.learnt).goes_alone(topic)
    }

    /// A message of the topic was taken.
    pub(crate) fn trust(&self, topic: &str) {
        lock(&self.learnt).trust(topic);
    }

    /// A message of the topic was refused.
    pub(crate) fn suspect(&self, topic: &str) {
        lock(&self.learnt).suspect(topic);
    }

    /// A channel was closed, and it may be for any exchange.
    pub(crate) fn trust_nothing(&self) {
        lock(&self.learnt).exchanges.clear();
    }

    /// Says good-bye to the server, for no longer than this.
    pub(crate) async fn close(&self, patience: Duration) {
        lock(&self.idle).clear();
        // Whether the server answered or not, it ends now.
        let _ = timeout(patience, self.connection.close(200, "OK".into())).await;
        self.shut();
    }

    /// Ends it at once.
    pub(crate) fn shut(&self) {
        self.socket.shut();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shut();
    }
}

fn remember(names: &mut BTreeSet<String>, name: &str) {
    if names.len() >= NAMES_MAX {
        // All are learnt again, at the price of one message alone for each.
        names.clear();
    }
    names.insert(name.to_owned());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver's thread logs returned messages with headers and payload as a warning, and every frame
/// at the lowest level, the password's too (I15). What matters of it is in our errors.
fn silence_this_thread() {
    let silent = tracing::subscriber::set_default(NoSubscriber::new());
    // For as long as the thread lives.
    std::mem::forget(silent);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_goes_alone_until_one_of_it_was_taken() {
        let mut learnt = Learnt::default();
        assert!(learnt.goes_alone("e/a"), "nobody knows the exchange");
        learnt.trust("e/a");
        assert!(!learnt.goes_alone("e/b"));
        learnt.suspect("e/b");
        assert!(learnt.goes_alone("e/b"));
        assert!(!learnt.goes_alone("e/a"), "another topic");
        learnt.trust("e/a");
        assert!(learnt.goes_alone("e/b"), "none of it was taken");
        learnt.trust("e/b");
        assert!(!learnt.goes_alone("e/b"));
    }

    #[test]
    fn i8_no_more_names_are_remembered_than_so_many() {
        let mut learnt = Learnt::default();
        for n in 0..3 * NAMES_MAX {
            learnt.trust(&format!("e{n}/k"));
            learnt.suspect(&format!("e/k{n}"));
        }
        assert!(learnt.exchanges.len() <= NAMES_MAX);
        assert!(learnt.suspects.len() <= NAMES_MAX);
    }
}
