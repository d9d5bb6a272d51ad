//! A SQLite file as the store of a relay process.

use serde_json::Value;
use tempfile::TempDir;

use super::{Place, Settings, until};

/// A file with the schema, and the program on it: from there to the Redis of the place.
pub(crate) struct File {
    pub(crate) settings: Settings,
    _folder: TempDir,
}

impl File {
    /// A new file, with these settings of the program.
    pub(crate) fn new(place: &Place, change: impl FnOnce(Settings) -> Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
        let settings = change(place.relay().set("store.url", url));
        settings.run(&["migrate"]);
        Self {
            settings,
            _folder: folder,
        }
    }

    /// Writes an event.
    pub(crate) fn enqueue(&self, topic: &str, key: &str, payload: &str) {
        let event = ["enqueue", "--topic", topic, "--type", "T", "--key", key];
        let payload = ["--payload", payload];
        self.settings.run(&[&event[..], &payload].concat());
    }

    /// Waits until `outbox status` counts so many.
    pub(crate) async fn until_counted(&self, what: &str, number: u64) {
        until(what, async || {
            let status = self.settings.run(&["status", "--json"]);
            let status: Value = serde_json::from_str(&status).unwrap();
            status[what]["value"] == number
        })
        .await;
    }
}
