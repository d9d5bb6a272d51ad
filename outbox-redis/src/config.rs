//! The settings of the publisher.

use std::{fmt, path::PathBuf, time::Duration};

use outbox_core::{Encoding, Error, ErrorKind, Result, setting};
use redis::{ConnectionInfo, IntoConnectionInfo as _};
use serde::Deserialize;

/// Settings of [`RedisPublisher`](crate::RedisPublisher). Only `url` has no default.
///
/// Durations are read as text with a unit (`"30s"`, `"500ms"`). `Debug` shows the address without
/// user, password and query.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://[user[:password]@]host[:port][/db]`, `rediss://…` for TLS (feature `tls`), or
    /// `unix:///path`. User and password are percent-encoded.
    pub url: String,
    /// Certificates (PEM) to trust for `rediss://`, instead of the system's. Feature `tls`.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The longest one publish call may take, the way to a connection included. Default 30 s: the
    /// relay renews its leases meanwhile, and a shorter one makes copies on a busy server.
    #[serde(default = "publish_timeout", deserialize_with = "setting::duration")]
    pub publish_timeout: Duration,
    /// The longest that reaching, signing in and reading the server's limits may take. Default 5 s:
    /// a dead address must not eat the whole of `publish_timeout`.
    #[serde(default = "connect_timeout", deserialize_with = "setting::duration")]
    pub connect_timeout: Duration,
    /// Sends each part of a batch as MULTI/EXEC, so that a full or read-only server refuses the
    /// whole of it and order is kept. Default true; false is for clusters whose streams lie in
    /// several slots of one node, and for proxies without transactions.
    #[serde(default = "transactional")]
    pub transactional: bool,
    /// Events in one part of a batch. Default 500: the server serves nobody else meanwhile.
    #[serde(default = "pipeline_events_max")]
    pub pipeline_events_max: usize,
    /// Bytes in one part of a batch; an event above it goes alone. Default 4 MiB.
    #[serde(default = "pipeline_bytes_max")]
    pub pipeline_bytes_max: usize,
    /// Trims each stream to about this many entries (`MAXLEN ~ n`). Default: never, because
    /// trimming removes entries whether or not a consumer has read them: that is **loss**. The
    /// gauge `outbox_redis_trimmed_unread_entries` shows it.
    #[serde(default)]
    pub stream_entries_max: Option<u64>,
    /// How many replicas must confirm (`WAIT`) before an event counts as delivered. Default: none.
    /// With too few confirmations the events are `Unknown`, and are sent again.
    #[serde(default)]
    pub replicas_min: Option<u32>,
    /// The largest field of an entry in bytes. Default: the server's `proto-max-bulk-len`, or
    /// 512 MiB where `CONFIG GET` is not permitted.
    #[serde(default)]
    pub field_bytes_max: Option<usize>,
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
const fn transactional() -> bool {
    true
}
const fn pipeline_events_max() -> usize {
    500
}
const fn pipeline_bytes_max() -> usize {
    4 << 20
}

impl RedisConfig {
    /// The defaults for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_file: None,
            publish_timeout: publish_timeout(),
            connect_timeout: connect_timeout(),
            transactional: transactional(),
            pipeline_events_max: pipeline_events_max(),
            pipeline_bytes_max: pipeline_bytes_max(),
            stream_entries_max: None,
            replicas_min: None,
            field_bytes_max: None,
            encoding: Encoding::Plain,
        }
    }

    /// Checks the URL's form and that no bound is zero. No I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting; never with any part of the URL that may be a secret.
    pub fn validate(&self) -> Result<()> {
        self.connection_info()?;
        self.encoding.validate()?;
        let positive = [
            ("publish_timeout", !self.publish_timeout.is_zero()),
            ("connect_timeout", !self.connect_timeout.is_zero()),
            ("pipeline_events_max", self.pipeline_events_max > 0),
            ("pipeline_bytes_max", self.pipeline_bytes_max > 0),
            ("stream_entries_max", self.stream_entries_max != Some(0)),
            ("replicas_min", self.replicas_min != Some(0)),
            ("field_bytes_max", self.field_bytes_max != Some(0)),
        ];
        let durations = [
            ("publish_timeout", self.publish_timeout),
            ("connect_timeout", self.connect_timeout),
        ];
        setting::check_bounds(READ, &positive, &durations)
    }

    /// What the URL says, in the driver's form.
    pub(crate) fn connection_info(&self) -> Result<ConnectionInfo> {
        self.url.as_str().into_connection_info().map_err(|error| {
            // The driver's text is "what - Kind: detail", and the detail may repeat a part of the
            // URL: a password with an unescaped `?` becomes a query.
            let text = error.to_string();
            let what = text.split(" - ").next().unwrap_or_default().to_owned();
            wrong("the URL has not the form redis[s]://host[:port][/db], with [user]:password@ before the host")
                .context("reason", what)
                .context("setting", "url")
        })
    }
}

const READ: &str = "read Redis settings";

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, READ, what)
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self
            .connection_info()
            .map_or_else(|_| "malformed".to_owned(), |info| info.addr().to_string());
        f.debug_struct("RedisConfig")
            .field("url", &address)
            .field("ca_file", &self.ca_file)
            .field("publish_timeout", &self.publish_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("transactional", &self.transactional)
            .field("pipeline_events_max", &self.pipeline_events_max)
            .field("pipeline_bytes_max", &self.pipeline_bytes_max)
            .field("stream_entries_max", &self.stream_entries_max)
            .field("replicas_min", &self.replicas_min)
            .field("field_bytes_max", &self.field_bytes_max)
            .field("encoding", &self.encoding)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_the_defaults_and_unknown_keys_are_refused() {
        let read: RedisConfig = toml::from_str("url = 'redis://localhost'").unwrap();
        assert_eq!(read, RedisConfig::new("redis://localhost"));
        let read: RedisConfig =
            toml::from_str("url = 'redis://h'\npublish_timeout = '1500ms'\nreplicas_min = 1")
                .unwrap();
        assert_eq!(read.publish_timeout, Duration::from_millis(1500));
        assert_eq!(read.replicas_min, Some(1));
        let error = toml::from_str::<RedisConfig>("url = 'redis://h'\nmax_len = 1").unwrap_err();
        assert!(error.to_string().contains("max_len"), "{error}");
        assert!(
            toml::from_str::<RedisConfig>("url = 'redis://h'\nconnect_timeout = 'soon'").is_err()
        );
    }

    #[test]
    fn zero_bounds_are_refused_by_name() {
        let names = [
            "publish_timeout",
            "connect_timeout",
            "pipeline_events_max",
            "pipeline_bytes_max",
            "stream_entries_max",
            "replicas_min",
            "field_bytes_max",
        ];
        for name in names {
            let mut config = RedisConfig::new("redis://localhost");
            config.validate().unwrap();
            match name {
                "publish_timeout" => config.publish_timeout = Duration::ZERO,
                "connect_timeout" => config.connect_timeout = Duration::ZERO,
                "pipeline_events_max" => config.pipeline_events_max = 0,
                "pipeline_bytes_max" => config.pipeline_bytes_max = 0,
                "stream_entries_max" => config.stream_entries_max = Some(0),
                "replicas_min" => config.replicas_min = Some(0),
                _ => config.field_bytes_max = Some(0),
            }
            let error = config.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn endless_durations_are_refused_by_name() {
        for name in ["publish_timeout", "connect_timeout"] {
            let text = format!("url = 'redis://h'\n{name} = '18446744073709551615s'");
            let config: RedisConfig = toml::from_str(&text).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    /// Case creds-in-log: neither form of the password is ever shown.
    #[test]
    fn i15_no_form_of_the_url_shows_its_password() {
        let urls = [
            "redis://user:p%40ss%3Aw%2Ford%2521@localhost:6379/1",
            "redis://user:p@ss:w/ord%21@localhost:6379",
            "http://user:p%40ss%3Aw%2Ford%2521@localhost",
            "redis://:p@ss:w?protocol=ord%21@localhost",
            "redis://:p%40ss@localhost/ord%21",
            "redis://:p%40ss@localhost:99999",
            "redis://:p%40ss@localhost?protocol=ord%21",
            "p@ss:w/ord%21",
            "",
        ];
        for url in urls {
            let config = RedisConfig::new(url);
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
        assert!(
            RedisConfig::new("redis://user:pw@localhost:6379/1")
                .validate()
                .is_ok()
        );
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_tls_url_needs_the_feature() {
        let error = RedisConfig::new("rediss://localhost")
            .validate()
            .unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
    }
}
