//! The settings of the publisher.

use std::{fmt, path::PathBuf, time::Duration};

use lapin::uri::AMQPUri;
use outbox_core::{Encoding, Error, ErrorKind, Result, setting};
use serde::Deserialize;

/// Settings of [`AmqpPublisher`](crate::AmqpPublisher). Only `url` has no default.
///
/// Durations are read as text with a unit (`"30s"`, `"500ms"`). `Debug` shows the address without
/// user, password, virtual host and query.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmqpConfig {
    /// `amqp://[user[:password]@]host[:port][/vhost]`, or `amqps://…` for TLS (feature `tls`). User,
    /// password and virtual host are percent-encoded; without them `guest`, `guest` and `/`.
    pub url: String,
    /// Certificates (PEM) to trust for `amqps://`, beside those that browsers trust. Feature `tls`.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The longest one publish call may take, the way to a connection included. Default 30 s: the
    /// relay renews its leases meanwhile, and a shorter one makes copies on a busy server.
    #[serde(default = "publish_timeout", deserialize_with = "setting::duration")]
    pub publish_timeout: Duration,
    /// The longest that reaching and signing in may take. Default 5 s: a dead address must not eat
    /// the whole of `publish_timeout`.
    #[serde(default = "connect_timeout", deserialize_with = "setting::duration")]
    pub connect_timeout: Duration,
    /// How the attributes of events are named. Default `plain`.
    #[serde(default)]
    pub encoding: Encoding,
    /// After twice this without a sign of life an idle connection is given up. Whole seconds;
    /// default 10 s, and the server's own where that is shorter.
    #[serde(default = "heartbeat", deserialize_with = "setting::duration")]
    pub heartbeat: Duration,
    /// Events of one call that may wait for their confirmation at a time. Default 500.
    #[serde(default = "in_flight_events_max")]
    pub in_flight_events_max: usize,
    /// Bytes of one call that may wait for their confirmation at a time; an event above it goes
    /// alone. Default 4 MiB.
    #[serde(default = "in_flight_bytes_max")]
    pub in_flight_bytes_max: usize,
    /// The largest payload in bytes. Default 16 MiB, that of RabbitMQ 4; RabbitMQ 3 takes 128 MiB.
    /// The server does not tell its own (`max_message_size`), and closes the channel on more.
    #[serde(default = "message_bytes_max")]
    pub message_bytes_max: usize,
    /// An exchange to declare, durable, on each connection. Default: none; what is missing is an
    /// error of its topic then.
    #[serde(default)]
    pub declare_exchange: Option<String>,
    /// Its type. Default `topic`.
    #[serde(default)]
    pub declare_exchange_type: ExchangeType,
    /// A queue to declare, durable, on each connection. Default: none.
    #[serde(default)]
    pub declare_queue: Option<String>,
    /// Its type. Default `quorum`.
    #[serde(default)]
    pub declare_queue_type: QueueType,
    /// The key by which that queue is bound to that exchange, where both are declared. Default `#`,
    /// which is everything for a topic exchange.
    #[serde(default = "declare_binding_key")]
    pub declare_binding_key: String,
}

/// How an exchange routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeType {
    /// By patterns of the routing key.
    #[default]
    Topic,
    /// By the whole routing key.
    Direct,
    /// To every queue.
    Fanout,
}

/// How a queue keeps messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// Replicated; a confirmation means that a majority has it on disk.
    #[default]
    Quorum,
    /// On one node.
    Classic,
    /// A log that consumers read without removing.
    Stream,
}

impl QueueType {
    /// The value of `x-queue-type`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
            Self::Stream => "stream",
        }
    }
}

const fn publish_timeout() -> Duration {
    Duration::from_secs(30)
}
const fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}
const fn heartbeat() -> Duration {
    Duration::from_secs(10)
}
const fn in_flight_events_max() -> usize {
    500
}
const fn in_flight_bytes_max() -> usize {
    4 << 20
}
const fn message_bytes_max() -> usize {
    16 << 20
}
fn declare_binding_key() -> String {
    "#".to_owned()
}

/// The protocol has two bytes for it.
const HEARTBEAT_SECONDS_MAX: u64 = u16::MAX as u64;
/// The longest name in the protocol.
const NAME_BYTES_MAX: usize = 255;

impl AmqpConfig {
    /// The defaults for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_file: None,
            publish_timeout: publish_timeout(),
            connect_timeout: connect_timeout(),
            encoding: Encoding::default(),
            heartbeat: heartbeat(),
            in_flight_events_max: in_flight_events_max(),
            in_flight_bytes_max: in_flight_bytes_max(),
            message_bytes_max: message_bytes_max(),
            declare_exchange: None,
            declare_exchange_type: ExchangeType::default(),
            declare_queue: None,
            declare_queue_type: QueueType::default(),
            declare_binding_key: declare_binding_key(),
        }
    }

    /// Checks the URL's form, that no bound is zero and that names fit. No I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting; never with any part of the URL that may be a secret.
    pub fn validate(&self) -> Result<()> {
        self.uri()?;
        self.encoding.validate()?;
        let refuse = |what, name: &str| Err(wrong(what).context("setting", name));
        let positive = [
            ("publish_timeout", !self.publish_timeout.is_zero()),
            ("connect_timeout", !self.connect_timeout.is_zero()),
            ("in_flight_events_max", self.in_flight_events_max > 0),
            ("in_flight_bytes_max", self.in_flight_bytes_max > 0),
            ("message_bytes_max", self.message_bytes_max > 0),
        ];
        let durations = [
            ("publish_timeout", self.publish_timeout),
            ("connect_timeout", self.connect_timeout),
        ];
        setting::check_bounds(READ, &positive, &durations)?;
        let whole = Duration::from_secs(self.heartbeat.as_secs()) == self.heartbeat;
        if !whole || !(1..=HEARTBEAT_SECONDS_MAX).contains(&self.heartbeat.as_secs()) {
            return refuse("the setting must be 1 to 65535 whole seconds", "heartbeat");
        }
        let names = [
            ("declare_exchange", self.declare_exchange.as_deref()),
            ("declare_queue", self.declare_queue.as_deref()),
        ];
        for (name, value) in names {
            if value.is_some_and(str::is_empty) {
                return refuse("the name is empty; leave the setting out", name);
            }
        }
        let keys = ("declare_binding_key", Some(&*self.declare_binding_key));
        for (name, value) in names.into_iter().chain([keys]) {
            if value.is_some_and(|value| value.len() > NAME_BYTES_MAX) {
                return refuse("the name has at most 255 bytes", name);
            }
        }
        Ok(())
    }

    /// What the URL says, in the driver's form, with the heartbeat.
    pub(crate) fn uri(&self) -> Result<AMQPUri> {
        let form = "the URL has not the form amqp[s]://host[:port][/vhost], with \
                    [user]:password@ before the host, all percent-encoded";
        let malformed = || wrong(form).context("setting", "url");
        let is_amqp = ["amqp://", "amqps://"]
            .iter()
            .any(|scheme| self.url.starts_with(scheme));
        if !is_amqp {
            return Err(malformed());
        }
        // The driver's words may repeat a part of the URL.
        let mut uri: AMQPUri = self.url.parse().map_err(|_| malformed())?;
        // Without a host, and with an address in brackets, the driver would go to localhost without a
        // word.
        let (_, rest) = self.url.split_once("://").unwrap_or_default();
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        if host.starts_with('[') {
            let what = "the host can't be an IPv6 address; give a name";
            return Err(wrong(what).context("setting", "url"));
        }
        if host.is_empty() || host.starts_with(':') {
            return Err(malformed());
        }
        if uri.authority.port == 0 {
            return Err(malformed());
        }
        // By the letter of the specification that is the virtual host without a name, which nobody has.
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        if uri.vhost.len() > NAME_BYTES_MAX {
            return Err(malformed());
        }
        uri.query.heartbeat = u16::try_from(self.heartbeat.as_secs()).ok();
        Ok(uri)
    }
}

/// Host and port.
pub(crate) fn address(uri: &AMQPUri) -> String {
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

const READ: &str = "read RabbitMQ settings";

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, READ, what)
}

impl fmt::Debug for AmqpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self
            .uri()
            .map_or_else(|_| "malformed".to_owned(), |uri| address(&uri));
        f.debug_struct("AmqpConfig")
            .field("url", &address)
            .field("ca_file", &self.ca_file)
            .field("publish_timeout", &self.publish_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("encoding", &self.encoding)
            .field("heartbeat", &self.heartbeat)
            .field("in_flight_events_max", &self.in_flight_events_max)
            .field("in_flight_bytes_max", &self.in_flight_bytes_max)
            .field("message_bytes_max", &self.message_bytes_max)
            .field("declare_exchange", &self.declare_exchange)
            .field("declare_exchange_type", &self.declare_exchange_type)
            .field("declare_queue", &self.declare_queue)
            .field("declare_queue_type", &self.declare_queue_type)
            .field("declare_binding_key", &self.declare_binding_key)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_the_defaults_and_unknown_keys_are_refused() {
        let read: AmqpConfig = toml::from_str("url = 'amqp://localhost'").unwrap();
        assert_eq!(read, AmqpConfig::new("amqp://localhost"));
        let text = "url = 'amqp://h'\npublish_timeout = '1500ms'\ndeclare_queue = 'q'\ndeclare_queue_type = 'stream'";
        let read: AmqpConfig = toml::from_str(text).unwrap();
        assert_eq!(read.publish_timeout, Duration::from_millis(1500));
        assert_eq!(read.declare_queue_type, QueueType::Stream);
        let error = toml::from_str::<AmqpConfig>("url = 'amqp://h'\nin_flight = 1").unwrap_err();
        assert!(error.to_string().contains("in_flight"), "{error}");
        assert!(toml::from_str::<AmqpConfig>("url = 'amqp://h'\nheartbeat = 'soon'").is_err());
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        type Change<'a> = (&'a str, &'a dyn Fn(&mut AmqpConfig));
        let long = "x".repeat(256);
        let changes: [Change<'_>; 15] = [
            ("publish_timeout", &|c| c.publish_timeout = Duration::ZERO),
            ("connect_timeout", &|c| c.connect_timeout = Duration::ZERO),
            ("publish_timeout", &|c| c.publish_timeout = Duration::MAX),
            ("connect_timeout", &|c| c.connect_timeout = Duration::MAX),
            ("heartbeat", &|c| c.heartbeat = Duration::ZERO),
            ("heartbeat", &|c| c.heartbeat = Duration::from_millis(1500)),
            ("heartbeat", &|c| c.heartbeat = Duration::from_secs(65_536)),
            ("in_flight_events_max", &|c| c.in_flight_events_max = 0),
            ("in_flight_bytes_max", &|c| c.in_flight_bytes_max = 0),
            ("message_bytes_max", &|c| c.message_bytes_max = 0),
            ("declare_exchange", &|c| {
                c.declare_exchange = Some(String::new());
            }),
            ("declare_queue", &|c| c.declare_queue = Some(String::new())),
            ("declare_exchange", &|c| {
                c.declare_exchange = Some(long.clone());
            }),
            ("declare_queue", &|c| c.declare_queue = Some(long.clone())),
            ("declare_binding_key", &|c| {
                c.declare_binding_key.clone_from(&long);
            }),
        ];
        for (name, change) in changes {
            let mut config = AmqpConfig::new("amqp://localhost");
            config.validate().unwrap();
            change(&mut config);
            let error = config.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn urls_are_read_as_they_are_meant() {
        let uri = |url: &str| AmqpConfig::new(url).uri();
        for (url, vhost) in [
            ("amqp://h", "/"),
            ("amqp://h/", "/"),
            ("amqp://h/%2f", "/"),
            ("amqp://h:1/shop", "shop"),
        ] {
            let uri = uri(url).unwrap();
            assert_eq!((&*uri.vhost, &*uri.authority.host), (vhost, "h"));
            assert_eq!(uri.query.heartbeat, Some(10));
        }
        for url in [
            "",
            "h",
            "http://h",
            "amqp://",
            "amqp://h:x",
            "amqp:h",
            "amqp://[::1]/",
            "amqp://u:p@[::1]:1",
            "amqp://h:0",
            "amqp:///v",
            "amqp://u:p@",
            "amqp://:1",
        ] {
            let error = uri(url).map(|uri| uri.to_string()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
            assert!(error.to_string().contains("setting=url"), "{error}");
        }
    }

    /// Case creds-in-log: neither form of the password is ever shown.
    #[test]
    fn i15_no_form_of_the_url_shows_its_password() {
        let urls = [
            "amqp://user:p%40ss%3Aw%2Ford%2521@localhost:5672/%2f",
            "amqp://user:p@ss:w/ord%21@localhost:5672",
            "http://user:p%40ss%3Aw%2Ford%2521@localhost",
            "amqp://:p%40ss@localhost/ord%21",
            "amqp://:p%40ss@localhost:99999",
            "amqp://:p%40ss@localhost?heartbeat=ord%21",
            "p@ss:w/ord%21",
            "",
        ];
        for url in urls {
            let config = AmqpConfig::new(url);
            let checked = config.validate();
            let shown = format!("{config:?} {checked:?}");
            for secret in ["p@ss", "p%40ss", "ord%21", "w/ord", "ord!"] {
                assert!(!shown.contains(secret), "{secret} in {shown}");
            }
        }
        let good = AmqpConfig::new("amqp://user:pw@localhost:5672/%2f");
        good.validate().unwrap();
    }
}
