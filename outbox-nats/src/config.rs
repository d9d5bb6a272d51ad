//! The settings of the publisher.

use std::{fmt, path::PathBuf, time::Duration};

use async_nats::ServerAddr;
use outbox_core::{Encoding, Error, ErrorKind, Result, setting};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// Settings of [`NatsPublisher`](crate::NatsPublisher). Only `url` has no default.
///
/// Durations are read as text with a unit (`"30s"`, `"500ms"`). `Debug` shows the addresses without
/// user, password and token.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// `nats://[user:password@|token@]host[:port]`, `tls://…` for TLS (feature `tls`); several with
    /// commas between them are servers of one cluster. User, password and token are
    /// percent-encoded.
    pub url: String,
    /// A file with the credentials of a user (JWT and seed), as `nsc` makes it. It is read anew for
    /// each connection.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// A file with the seed of an nkey (`SU…`). It is read anew for each connection.
    #[serde(default)]
    pub nkey_file: Option<PathBuf>,
    /// Certificates (PEM) to trust for `tls://`, instead of the system's. Feature `tls`.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The longest one publish call may take, the way to a connection included. Default 30 s: the
    /// relay renews its leases meanwhile, and a shorter one makes copies on a busy server.
    #[serde(default = "publish_timeout", deserialize_with = "setting::duration")]
    pub publish_timeout: Duration,
    /// The longest that reaching one server, signing in and a question to it may take. Default 5 s:
    /// a dead address must not eat the whole of `publish_timeout`.
    #[serde(default = "connect_timeout", deserialize_with = "setting::duration")]
    pub connect_timeout: Duration,
    /// Events that may be on their way without an answer. Default 500: enough to hide the way to
    /// the server and back, and far below what a stream buffers before it refuses (10,000).
    #[serde(default = "in_flight_events_max")]
    pub in_flight_events_max: usize,
    /// Bytes that may be on their way without an answer; an event above it goes alone. Default
    /// 4 MiB.
    #[serde(default = "in_flight_bytes_max")]
    pub in_flight_bytes_max: usize,
    /// The largest message in bytes, headers counted. Default: the server's `max_payload`. Set it
    /// where a stream's `max_msg_size` is lower, so that an event above it is found before it is
    /// sent.
    #[serde(default)]
    pub message_bytes_max: Option<usize>,
    /// Streams that `check` looks at for settings under which events are lost or doubled. Default:
    /// those that have taken an event since the start.
    #[serde(default)]
    pub streams: Vec<String>,
    /// The longest time after which an event in doubt may be sent again: a stream whose duplicate
    /// window is shorter may store it twice, and `check` warns. Default 5 min, the relay's longest
    /// retry delay unless that is changed.
    #[serde(
        default = "duplicate_window_min",
        deserialize_with = "setting::duration"
    )]
    pub duplicate_window_min: Duration,
    /// The first part of the subjects for answers; a server may restrict a user to one. Default
    /// `_INBOX`.
    #[serde(default = "inbox_prefix")]
    pub inbox_prefix: String,
    /// The JetStream domain, where the streams are behind a leaf node. Default: none.
    #[serde(default)]
    pub domain: Option<String>,
    /// How the attributes of an event are named. Default: plain.
    #[serde(default)]
    pub encoding: Encoding,
}

const fn publish_timeout() -> Duration {
    Duration::from_secs(30)
}
const fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}
const fn in_flight_events_max() -> usize {
    500
}
const fn in_flight_bytes_max() -> usize {
    4 << 20
}
const fn duplicate_window_min() -> Duration {
    Duration::from_secs(300)
}
fn inbox_prefix() -> String {
    "_INBOX".to_owned()
}

/// A stream refuses more than it buffers, which is 10,000 unless changed.
const IN_FLIGHT_EVENTS_LIMIT: usize = 10_000;

/// Who signs in, from the URL.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct SignIn {
    pub(crate) user_and_password: Option<(String, String)>,
    pub(crate) token: Option<String>,
}

impl SignIn {
    /// What must never be shown.
    pub(crate) fn secret(&self) -> Option<&str> {
        let password = self
            .user_and_password
            .as_ref()
            .map(|(_, password)| password);
        password.or(self.token.as_ref()).map(String::as_str)
    }
}

/// A server and who signs in there. The address has no secret, so that the driver can't log one.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: ServerAddr,
    pub(crate) sign_in: SignIn,
}

impl Server {
    pub(crate) fn name(&self) -> String {
        let (host, port) = (self.address.host(), self.address.port());
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }
}

impl NatsConfig {
    /// The defaults for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            credentials_file: None,
            nkey_file: None,
            ca_file: None,
            publish_timeout: publish_timeout(),
            connect_timeout: connect_timeout(),
            in_flight_events_max: in_flight_events_max(),
            in_flight_bytes_max: in_flight_bytes_max(),
            message_bytes_max: None,
            streams: Vec::new(),
            duplicate_window_min: duplicate_window_min(),
            inbox_prefix: inbox_prefix(),
            domain: None,
            encoding: Encoding::Plain,
        }
    }

    /// Checks the URL's form, that bounds are possible and that names are. No I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting; never with any part of the URL that may be a secret.
    pub fn validate(&self) -> Result<()> {
        let servers = self.servers()?;
        self.encoding.validate()?;
        let positive = [
            ("publish_timeout", !self.publish_timeout.is_zero()),
            ("connect_timeout", !self.connect_timeout.is_zero()),
            ("in_flight_events_max", self.in_flight_events_max > 0),
            ("in_flight_bytes_max", self.in_flight_bytes_max > 0),
            ("message_bytes_max", self.message_bytes_max != Some(0)),
        ];
        let durations = [
            ("publish_timeout", self.publish_timeout),
            ("connect_timeout", self.connect_timeout),
            ("duplicate_window_min", self.duplicate_window_min),
        ];
        setting::check_bounds(READ, &positive, &durations)?;
        if self.in_flight_events_max > IN_FLIGHT_EVENTS_LIMIT {
            return Err(wrong("the setting must be at most 10000")
                .context("setting", "in_flight_events_max"));
        }
        let names = [
            ("inbox_prefix", Some(&self.inbox_prefix)),
            ("domain", self.domain.as_ref()),
        ];
        let names = names
            .into_iter()
            .filter_map(|(setting, name)| Some((setting, name?)));
        let streams = self.streams.iter().map(|name| ("streams", name));
        for (setting, name) in names.chain(streams) {
            let dots = setting == "inbox_prefix";
            if !is_name(name, dots) {
                return Err(
                    wrong("the name can't be a part of a subject").context("setting", setting)
                );
            }
        }
        let ways = [self.credentials_file.is_some(), self.nkey_file.is_some()];
        let signed = servers
            .iter()
            .any(|server| server.sign_in != SignIn::default());
        if ways.iter().filter(|is_set| **is_set).count() + usize::from(signed) > 1 {
            return Err(wrong(
                "sign in by one of: the URL, credentials_file, nkey_file",
            ));
        }
        Ok(())
    }

    /// What the URL says.
    pub(crate) fn servers(&self) -> Result<Vec<Server>> {
        self.url
            .split(',')
            .map(|part| server(part.trim()))
            .collect()
    }
}

fn server(text: &str) -> Result<Server> {
    // The driver's own words may repeat a part of the URL.
    let malformed = || {
        wrong("the URL has not the form nats://host[:port] or tls://host[:port], with user:password@ or token@ before the host")
            .context("setting", "url")
    };
    let (scheme, _) = text.split_once("://").ok_or_else(malformed)?;
    if scheme != "nats" && scheme != "tls" {
        return Err(malformed());
    }
    if scheme == "tls" && !cfg!(feature = "tls") {
        return Err(wrong("TLS needs the feature `tls`").context("setting", "url"));
    }
    let parsed: ServerAddr = text.parse().map_err(|_| malformed())?;
    // What comes behind the host is no part of an address: mostly a password that is not encoded.
    let mut url = parsed.clone().into_inner();
    let rest = [
        url.query(),
        url.fragment(),
        Some(url.path().trim_end_matches('/')),
    ];
    if url.host_str().is_none_or(str::is_empty)
        || rest.into_iter().flatten().any(|rest| !rest.is_empty())
    {
        return Err(malformed());
    }
    let decode = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(String::from).map_err(|_| malformed())
    };
    let sign_in = match (parsed.username(), parsed.password()) {
        (None, None) => SignIn::default(),
        (Some(token), None) => SignIn {
            token: Some(decode(token)?),
            user_and_password: None,
        },
        (user, Some(password)) => SignIn {
            user_and_password: Some((decode(user.unwrap_or_default())?, decode(password)?)),
            token: None,
        },
    };
    url.set_password(None)
        .and_then(|()| url.set_username(""))
        .map_err(|()| malformed())?;
    Ok(Server {
        address: ServerAddr::from_url(url).map_err(|_| malformed())?,
        sign_in,
    })
}

/// Whether it can stand in a subject: no wildcard, nothing that separates.
fn is_name(name: &str, dots: bool) -> bool {
    let good = |part: &str| {
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>' | '.');
        !part.is_empty() && !part.contains(odd)
    };
    if dots {
        name.split('.').all(good)
    } else {
        good(name)
    }
}

const READ: &str = "read NATS settings";

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, READ, what)
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.servers().map_or_else(
            |_| "malformed".to_owned(),
            |servers| {
                servers
                    .iter()
                    .map(Server::name)
                    .collect::<Vec<_>>()
                    .join(",")
            },
        );
        f.debug_struct("NatsConfig")
            .field("url", &addresses)
            .field("credentials_file", &self.credentials_file)
            .field("nkey_file", &self.nkey_file)
            .field("ca_file", &self.ca_file)
            .field("publish_timeout", &self.publish_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("in_flight_events_max", &self.in_flight_events_max)
            .field("in_flight_bytes_max", &self.in_flight_bytes_max)
            .field("message_bytes_max", &self.message_bytes_max)
            .field("streams", &self.streams)
            .field("duplicate_window_min", &self.duplicate_window_min)
            .field("inbox_prefix", &self.inbox_prefix)
            .field("domain", &self.domain)
            .field("encoding", &self.encoding)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_the_defaults_and_unknown_keys_are_refused() {
        let read: NatsConfig = toml::from_str("url = 'nats://localhost'").unwrap();
        assert_eq!(read, NatsConfig::new("nats://localhost"));
        let read: NatsConfig =
            toml::from_str("url = 'nats://h'\npublish_timeout = '1500ms'\nstreams = ['S']")
                .unwrap();
        assert_eq!(read.publish_timeout, Duration::from_millis(1500));
        assert_eq!(read.streams, ["S"]);
        let error = toml::from_str::<NatsConfig>("url = 'nats://h'\nstream = 1").unwrap_err();
        assert!(error.to_string().contains("stream"), "{error}");
        assert!(
            toml::from_str::<NatsConfig>("url = 'nats://h'\nconnect_timeout = 'soon'").is_err()
        );
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        type Set = fn(&mut NatsConfig);
        let long = Duration::from_secs(u64::MAX);
        let settings: [(&str, Set); 14] = [
            ("publish_timeout", |c| c.publish_timeout = Duration::ZERO),
            ("connect_timeout", |c| c.connect_timeout = Duration::ZERO),
            ("in_flight_events_max", |c| c.in_flight_events_max = 0),
            ("in_flight_events_max", |c| c.in_flight_events_max = 10_001),
            ("in_flight_bytes_max", |c| c.in_flight_bytes_max = 0),
            ("message_bytes_max", |c| c.message_bytes_max = Some(0)),
            ("inbox_prefix", |c| c.inbox_prefix = "a b".to_owned()),
            ("inbox_prefix", |c| c.inbox_prefix = "a..b".to_owned()),
            ("inbox_prefix", |c| c.inbox_prefix = String::new()),
            ("domain", |c| c.domain = Some("a.b".to_owned())),
            ("streams", |c| c.streams = vec!["*".to_owned()]),
            ("streams", |c| c.streams = vec!["a\r\nPUB x 0".to_owned()]),
            ("credentials_file", |c| {
                c.credentials_file = Some("a".into());
                c.nkey_file = Some("b".into());
            }),
            ("nkey_file", |c| {
                c.url = "nats://token@h".to_owned();
                c.nkey_file = Some("b".into());
            }),
        ];
        for (name, set) in settings {
            let mut config = NatsConfig::new("nats://localhost");
            config.validate().unwrap();
            set(&mut config);
            let error = config.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
        for name in ["publish_timeout", "connect_timeout", "duplicate_window_min"] {
            let mut config = NatsConfig::new("nats://localhost");
            match name {
                "publish_timeout" => config.publish_timeout = long,
                "connect_timeout" => config.connect_timeout = long,
                _ => config.duplicate_window_min = long,
            }
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        let config = NatsConfig::new("nats://us%40er:p%40ss%2F@a:1, nats://t%3Ak@[::1] ,nats://c/");
        let servers = config.servers().unwrap();
        let names: Vec<_> = servers.iter().map(Server::name).collect();
        assert_eq!(names, ["a:1", "[::1]:4222", "c:4222"]);
        let pair = servers[0].sign_in.user_and_password.clone().unwrap();
        assert_eq!(pair, ("us@er".to_owned(), "p@ss/".to_owned()));
        assert_eq!(servers[1].sign_in.token.as_deref(), Some("t:k"));
        assert!(servers[2].sign_in == SignIn::default());
        let addresses = format!(
            "{:?}",
            servers.iter().map(|s| &s.address).collect::<Vec<_>>()
        );
        for secret in ["p%40ss", "t%3Ak", "us%40er"] {
            assert!(!addresses.contains(secret), "{addresses}");
        }
    }

    /// Case creds-in-log: neither form of the password is ever shown.
    #[test]
    fn i15_no_form_of_the_url_shows_its_password() {
        let urls = [
            "nats://user:p%40ss%3Aw%2Ford%2521@localhost:4222",
            "nats://user:p@ss:w/ord%21@localhost:4222",
            "nats://p%40ss%3Aw%2Ford%2521@localhost",
            "http://user:p%40ss%3Aw%2Ford%2521@localhost",
            "nats://:p@ss:w?x=ord%21@localhost",
            "nats://user:p%40ss@localhost/ord%21",
            "nats://user:p%40ss@localhost:99999",
            "nats://a,nats://user:p%40ss@localhost#ord%21",
            "nats://p%40ss@",
            "p@ss:w/ord%21",
            "",
        ];
        for url in urls {
            let config = NatsConfig::new(url);
            let checked = config.validate();
            let shown = format!("{config:?} {checked:?}");
            if let Err(error) = checked {
                assert_eq!(error.kind(), ErrorKind::Configuration);
                assert!(!error.to_string().contains("p@ss"), "{error}");
            }
            for secret in ["p@ss", "p%40ss", "ord%21", "w/ord", "ord!"] {
                assert!(!shown.contains(secret), "{secret} in {shown}");
            }
        }
        assert!(NatsConfig::new(urls[0]).validate().is_ok());
        assert!(NatsConfig::new(urls[2]).validate().is_ok());
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_tls_url_needs_the_feature() {
        let error = NatsConfig::new("tls://localhost").validate().unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
    }
}
