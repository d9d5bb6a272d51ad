//! A file, and the program on it.

use std::{
    fs::{File, OpenOptions},
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use outbox_testkit::{block_on, program::Program};
use serde_json::Value;
use sqlx::{ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

/// A folder with a database and with what relays published; it goes when it is dropped.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn migrated() -> Self {
        let place = Self::new();
        place.run(&["migrate"]);
        place
    }

    /// Runs statements on the file, as another program would.
    pub(crate) fn sql(&self, text: &'static str) {
        block_on(async {
            let mut connection = self.connection().await;
            let done = sqlx::raw_sql(text).execute(&mut connection).await;
            done.unwrap();
        });
    }

    /// The one text that the statement gives.
    pub(crate) fn text(&self, query: &'static str) -> String {
        block_on(async {
            let mut connection = self.connection().await;
            let value = sqlx::query_scalar(query).fetch_one(&mut connection).await;
            value.unwrap()
        })
    }

    /// The one number that the statement gives.
    pub(crate) fn number(&self, query: &'static str) -> i64 {
        block_on(async {
            let mut connection = self.connection().await;
            let value = sqlx::query_scalar(query).fetch_one(&mut connection).await;
            value.unwrap()
        })
    }

    /// Keeps all others from writing until it is dropped.
    pub(crate) fn lock(&self) -> SqliteConnection {
        block_on(async {
            let mut connection = self.connection().await;
            let begun = sqlx::raw_sql("BEGIN IMMEDIATE")
                .execute(&mut connection)
                .await;
            begun.unwrap();
            connection
        })
    }

    async fn connection(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path("outbox.db"));
        options.connect().await.unwrap()
    }

    /// What `status --json` tells.
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "--json"])).unwrap()
    }

    /// One of its counts.
    pub(crate) fn count(&self, of: &str) -> u64 {
        self.status()[of]["value"].as_u64().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program with this database, and with no setting of the test's own environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOX__") || name == "OUTBOX_CONFIG" {
                command.env_remove(name);
            }
        }
        let url = format!("sqlite:{}", self.path("outbox.db").display());
        command
            .current_dir(self.folder.path())
            .env("OUTBOX__STORE__URL", url)
            .args(arguments);
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// What a command printed; it must succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command said as it failed.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A relay with four lanes.
    pub(crate) fn relay_command(&self, lease: &str) -> Command {
        let mut command = self.command(&["relay", "--publisher", "stdout"]);
        command
            .env("OUTBOX__STORE__LEASE", lease)
            .env("OUTBOX__STORE__WORKERS", "4")
            .env("OUTBOX__RELAY__BATCH_EVENTS_MAX", "20");
        command
    }

    /// Starts a relay with four lanes that appends what it publishes to the file of all relays here.
    pub(crate) fn relay(&self, lease: &str) -> Program {
        self.start(self.relay_command(lease))
    }

    /// Starts a relay of other settings.
    pub(crate) fn start(&self, mut command: Command) -> Program {
        command.stdout(self.published_file());
        Program::start(command)
    }

    /// One open file for all: each line goes behind the last one, in the order of the publishing.
    fn published_file(&self) -> File {
        let mut options = OpenOptions::new();
        let path = self.path("published.jsonl");
        options.create(true).append(true).open(path).unwrap()
    }

    /// The lines that were published so far.
    pub(crate) fn published(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("published.jsonl")).unwrap_or_default();
        // The last one may be half written yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
