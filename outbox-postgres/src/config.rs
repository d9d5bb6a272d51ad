//! The settings of the store.

use std::{fmt, time::Duration};

use outbox_core::{DoneMode, Error, ErrorKind, Limits, Result, setting};
use serde::Deserialize;

use crate::{sql::Schema, url};

/// Whether the table is one of partitions by the time of the insert (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitions {
    /// One plain table.
    None,
    /// A partition for each day.
    Daily,
    /// A partition for each month.
    Monthly,
}

impl Partitions {
    /// As it is written in settings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Daily => "daily",
            Self::Monthly => "monthly",
        }
    }
}

/// Settings of [`PgQueue`](crate::PgQueue). Only `url` has no default.
///
/// Durations are read as text with a unit (`"30s"`, `"500ms"`). `Debug` shows the server without
/// user, password and parameters.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PgConfig {
    /// `postgres://[user[:password]@]host[:port]/database[?sslmode=…]`. User and password are
    /// percent-encoded. TLS needs the feature `tls`.
    pub url: String,
    /// The schema that holds the outbox. Default `outbox`. Letters, digits, `_`, `-`, at most 63 bytes.
    #[serde(default = "schema")]
    pub schema: String,
    /// Connections at the most. Default 4: two lanes, each of which claims and settles at once.
    #[serde(default = "pool_size")]
    pub pool_size: u32,
    /// The longest that getting a connection may take, signing in included. Default 5 s.
    #[serde(default = "connect_timeout", deserialize_with = "setting::duration")]
    pub connect_timeout: Duration,
    /// The longest that the server works on one statement. Default 15 s: half a lease, so that a
    /// claim that took this long is still ours when it returns.
    #[serde(default = "statement_timeout", deserialize_with = "setting::duration")]
    pub statement_timeout: Duration,
    /// How long a claim stays its worker's without a renewal. Default 30 s: what a killed relay had
    /// in flight waits this long. At least 100 ms.
    #[serde(default = "lease", deserialize_with = "setting::duration")]
    pub lease: Duration,
    /// Lanes of each route of a relay. Default 2: one claims while the other settles.
    #[serde(default = "workers")]
    pub workers: usize,
    /// What becomes of delivered rows. Default: they are kept.
    #[serde(default)]
    pub done: DoneMode,
    /// What partitions the table has. A migration makes them of an empty plain table; from then on the
    /// table's own state counts, and a relay and [`check_settings`](outbox_core::Store::check_settings) tell
    /// where it is another. Default: not said. A new table is plain then, and any is taken as it is.
    #[serde(default)]
    pub partitions: Option<Partitions>,
    /// Payload, headers and names of one event in bytes; what is over it is dead-lettered unread.
    /// Default 900,000, as in [`Limits`]: rows written by SQL are not checked by the writer.
    #[serde(default = "event_bytes_max")]
    pub event_bytes_max: usize,
}

fn schema() -> String {
    "outbox".to_owned()
}
const fn pool_size() -> u32 {
    4
}
const fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}
const fn statement_timeout() -> Duration {
    Duration::from_secs(15)
}
const fn lease() -> Duration {
    Duration::from_secs(30)
}
const fn workers() -> usize {
    2
}
fn event_bytes_max() -> usize {
    Limits::default().event_bytes_max
}

/// The longest duration that a setting may have: PostgreSQL's timeouts are 32-bit milliseconds.
const DURATION_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// The shortest lease: round trips of a busy database fit into it.
const LEASE_MIN: Duration = Duration::from_millis(100);

impl PgConfig {
    /// The defaults for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: schema(),
            pool_size: pool_size(),
            connect_timeout: connect_timeout(),
            statement_timeout: statement_timeout(),
            lease: lease(),
            workers: workers(),
            done: DoneMode::default(),
            partitions: None,
            event_bytes_max: event_bytes_max(),
        }
    }

    /// Checks the form of URL and schema, and that every bound can be kept. No I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting; never with any part of the URL that may be a secret.
    pub fn validate(&self) -> Result<()> {
        url::parse(&self.url)?;
        self.validate_bounds()
    }

    /// Like [`validate`](Self::validate) for a store that is given its connections.
    pub(crate) fn validate_bounds(&self) -> Result<()> {
        Schema::new(&self.schema)?;
        let counts = [
            // Far more than any server admits; the pool takes memory for each in advance.
            ("pool_size", (1..=10_000).contains(&self.pool_size)),
            ("workers", (1..=256).contains(&self.workers)),
            ("event_bytes_max", self.event_bytes_max > 0),
        ];
        if let Some((setting, _)) = counts.iter().find(|(_, good)| !good) {
            return Err(wrong("the setting is out of its range").context("setting", setting));
        }
        let durations = [
            ("connect_timeout", self.connect_timeout),
            ("statement_timeout", self.statement_timeout),
            ("lease", self.lease),
        ];
        for (setting, value) in durations {
            if value < Duration::from_millis(1) || value > DURATION_MAX {
                return Err(
                    wrong("the setting must be from 1 ms to 24 days").context("setting", setting)
                );
            }
        }
        if self.lease < LEASE_MIN {
            return Err(wrong(
                "a lease below 100 ms ends before its claim is answered, and events would die as crashed; raise it",
            )
            .context("setting", "lease"));
        }
        Ok(())
    }
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read PostgreSQL settings", what)
}

impl fmt::Debug for PgConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = url::parse(&self.url)
            .map_or_else(|_| "malformed".to_owned(), |options| url::server(&options));
        f.debug_struct("PgConfig")
            .field("url", &server)
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("lease", &self.lease)
            .field("workers", &self.workers)
            .field("done", &self.done)
            .field("partitions", &self.partitions)
            .field("event_bytes_max", &self.event_bytes_max)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_read_and_unknown_keys_are_refused() {
        let config: PgConfig = toml::from_str(
            "url = 'postgres://u@h/d'\nlease = '500ms'\ndone = 'delete'\nworkers = 3",
        )
        .unwrap();
        assert_eq!(config.lease, Duration::from_millis(500));
        assert_eq!(
            (config.done, config.workers, config.pool_size),
            (DoneMode::Delete, 3, 4)
        );
        config.validate().unwrap();
        let error =
            toml::from_str::<PgConfig>("url = 'postgres://u@h/d'\nleese = '1s'").unwrap_err();
        assert!(error.to_string().contains("leese"), "{error}");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let with = |change: fn(&mut PgConfig)| {
            let mut config = PgConfig::new("postgres://u@h/d");
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        for (setting, error) in [
            ("pool_size", with(|c| c.pool_size = 0)),
            ("workers", with(|c| c.workers = 0)),
            ("event_bytes_max", with(|c| c.event_bytes_max = 0)),
            ("pool_size", with(|c| c.pool_size = u32::MAX)),
            ("lease", with(|c| c.lease = Duration::ZERO)),
            ("lease", with(|c| c.lease = Duration::from_millis(99))),
            (
                "statement_timeout",
                with(|c| c.statement_timeout = Duration::MAX),
            ),
            (
                "connect_timeout",
                with(|c| c.connect_timeout = Duration::ZERO),
            ),
            ("schema", with(|c| c.schema = "a\"b".to_owned())),
        ] {
            assert!(
                error.contains("configuration") && error.contains(setting),
                "{error}"
            );
        }
    }

    #[test]
    fn creds_in_log_debug_hides_user_and_password() {
        let debug = format!(
            "{:?}",
            PgConfig::new("postgres://bob:p%40ss@h:1/d?password=hunter2")
        );
        assert!(debug.contains("h:1/d"), "{debug}");
        for secret in ["bob", "p%40ss", "p@ss", "hunter2"] {
            assert!(!debug.contains(secret), "{debug}");
        }
    }
}
