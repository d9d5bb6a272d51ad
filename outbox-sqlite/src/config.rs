//! The settings of the store.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use outbox_core::{DoneMode, Error, ErrorKind, Limits, Result, setting};
use serde::Deserialize;

/// Settings of [`SqliteQueue`](crate::SqliteQueue). Only `url` has no default.
///
/// Durations are read as text with a unit (`"30s"`, `"500ms"`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqliteConfig {
    /// `sqlite:path` or `sqlite://path`, taken as it is: no parameters, no escapes. The folder must
    /// exist; the file is made by [`migrate`](outbox_core::Store::migrate) only.
    pub url: String,
    /// Connections at the most. Default 4: one writes, the others look for work.
    #[serde(default = "pool_size")]
    pub pool_size: u32,
    /// The longest that getting one of these connections may take. Default 5 s.
    #[serde(default = "connect_timeout", deserialize_with = "setting::duration")]
    pub connect_timeout: Duration,
    /// How long a call waits for another writer of the file. Default 5 s.
    #[serde(default = "busy_timeout", deserialize_with = "setting::duration")]
    pub busy_timeout: Duration,
    /// How long a claim stays its worker's without a renewal. Default 30 s: what a killed relay had
    /// in flight waits this long. At least 100 ms.
    #[serde(default = "lease", deserialize_with = "setting::duration")]
    pub lease: Duration,
    /// Lanes of each route, over all relays on this file. Default 2. Written into the file when a
    /// route first asks for lanes, and what is written there counts.
    #[serde(default = "lanes")]
    pub lanes: usize,
    /// What becomes of delivered rows. Default: they are kept.
    #[serde(default)]
    pub done: DoneMode,
    /// Payload, headers and names of one event in bytes; what is over it is dead-lettered unread.
    /// Default 900,000, as in [`Limits`]: rows written by SQL are not checked by the writer.
    #[serde(default = "event_bytes_max")]
    pub event_bytes_max: usize,
}

const fn pool_size() -> u32 {
    4
}
const fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}
const fn busy_timeout() -> Duration {
    Duration::from_secs(5)
}
const fn lease() -> Duration {
    Duration::from_secs(30)
}
const fn lanes() -> usize {
    2
}
fn event_bytes_max() -> usize {
    Limits::default().event_bytes_max
}

/// The longest duration that a setting may have: SQLite's busy timeout is 32-bit milliseconds.
const DURATION_MAX: Duration = Duration::from_secs(24 * 24 * 3600);

/// The shortest lease: a few commits to a slow disk fit into it.
const LEASE_MIN: Duration = Duration::from_millis(100);

impl SqliteConfig {
    /// The defaults for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            pool_size: pool_size(),
            connect_timeout: connect_timeout(),
            busy_timeout: busy_timeout(),
            lease: lease(),
            lanes: lanes(),
            done: DoneMode::default(),
            event_bytes_max: event_bytes_max(),
        }
    }

    /// The file.
    ///
    /// # Errors
    /// `Configuration` when the URL names none.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let Some(rest) = self.url.strip_prefix("sqlite:") else {
            return Err(wrong(
                "it does not start with sqlite:; write sqlite:path/to/file",
            ));
        };
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.is_empty() {
            return Err(wrong("it names no file; write sqlite:path/to/file"));
        }
        if path.starts_with(":memory:") {
            return Err(wrong(
                "a database in memory would be another one for each connection; name a file",
            ));
        }
        if path.contains('?') {
            return Err(wrong("it has parameters; use the store's settings"));
        }
        Ok(Path::new(path).to_path_buf())
    }

    /// Checks the form of the URL, and that every bound can be kept. No I/O.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub fn validate(&self) -> Result<()> {
        self.path()?;
        let counts = [
            ("pool_size", (1..=100).contains(&self.pool_size)),
            ("lanes", (1..=256).contains(&self.lanes)),
            ("event_bytes_max", self.event_bytes_max > 0),
        ];
        if let Some((setting, _)) = counts.iter().find(|(_, good)| !good) {
            return Err(bad("the setting is out of its range").context("setting", setting));
        }
        let durations = [
            ("connect_timeout", self.connect_timeout),
            ("busy_timeout", self.busy_timeout),
            ("lease", self.lease),
        ];
        for (setting, value) in durations {
            if value < Duration::from_millis(1) || value > DURATION_MAX {
                return Err(
                    bad("the setting must be from 1 ms to 24 days").context("setting", setting)
                );
            }
        }
        if self.lease < LEASE_MIN {
            return Err(bad(
                "a lease below 100 ms ends before its claim is answered, and events would die as crashed; raise it",
            )
            .context("setting", "lease"));
        }
        Ok(())
    }
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read the SQLite URL", what)
}

fn bad(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read SQLite settings", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_read_and_unknown_keys_are_refused() {
        let config: SqliteConfig =
            toml::from_str("url = 'sqlite:a.db'\nlease = '500ms'\ndone = 'delete'\nlanes = 3")
                .unwrap();
        assert_eq!(config.lease, Duration::from_millis(500));
        assert_eq!((config.done, config.lanes), (DoneMode::Delete, 3));
        config.validate().unwrap();
        let error = toml::from_str::<SqliteConfig>("url = 'sqlite:a'\nleese = '1s'").unwrap_err();
        assert!(error.to_string().contains("leese"), "{error}");
    }

    #[test]
    fn urls_name_a_file() {
        for (url, path) in [
            ("sqlite:a.db", "a.db"),
            ("sqlite://a.db", "a.db"),
            ("sqlite:/x/a.db", "/x/a.db"),
            ("sqlite:///x/a%20b.db", "/x/a%20b.db"),
        ] {
            assert_eq!(SqliteConfig::new(url).path().unwrap(), Path::new(path));
        }
        for url in [
            "a.db",
            "sqlite:",
            "sqlite://",
            "sqlite::memory:",
            "sqlite:a?mode=ro",
        ] {
            let error = SqliteConfig::new(url).validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let with = |change: fn(&mut SqliteConfig)| {
            let mut config = SqliteConfig::new("sqlite:a.db");
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        for (setting, error) in [
            ("pool_size", with(|c| c.pool_size = 0)),
            ("lanes", with(|c| c.lanes = 0)),
            ("lanes", with(|c| c.lanes = 257)),
            ("event_bytes_max", with(|c| c.event_bytes_max = 0)),
            ("lease", with(|c| c.lease = Duration::from_millis(99))),
            ("busy_timeout", with(|c| c.busy_timeout = Duration::MAX)),
            (
                "connect_timeout",
                with(|c| c.connect_timeout = Duration::ZERO),
            ),
        ] {
            assert!(
                error.contains("configuration") && error.contains(setting),
                "{error}"
            );
        }
    }
}
