//! The suites that every ordered store passes, in both ways of settling: once with all handles in this
//! process, and once with each in a process of its own, the writer here.

use std::{process::Command, sync::Arc};

use async_trait::async_trait;
use outbox_core::{Enqueue as _, Enqueued, Event, OutboxStore};
use outbox_sqlite::{DoneMode, SqliteConfig, SqliteOutbox};
use outbox_testkit::{
    remote::RemoteStore,
    store_suite::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer},
};
use sqlx::{Sqlite, Transaction};

use crate::support::File;

struct FileHarness {
    done: DoneMode,
    handles: Handles,
}

/// Where the relays' handles are.
#[derive(Clone, Copy)]
enum Handles {
    Here,
    Elsewhere,
}

struct FileOutbox {
    file: File,
    handles: Handles,
}

struct FileWriter(Transaction<'static, Sqlite>);

#[async_trait]
impl StoreHarness for FileHarness {
    fn gates(&self) -> StoreGates {
        StoreGates {
            unreadable: true,
            sessions: false,
            concurrent_writers: false,
            keeps_delivered: self.done == DoneMode::Keep,
        }
    }

    async fn fresh(&self, options: StoreOptions) -> Arc<dyn Outbox> {
        let mut file = File::migrated().await;
        file.config.lease = options.lease;
        file.config.lanes = options.lanes;
        file.config.done = self.done;
        Arc::new(FileOutbox {
            file,
            handles: self.handles,
        })
    }
}

#[async_trait]
impl Outbox for FileOutbox {
    async fn open(&self) -> Arc<dyn OutboxStore> {
        match self.handles {
            Handles::Here => Arc::new(self.file.queue().await),
            Handles::Elsewhere => Arc::new(RemoteStore::start(served(&self.file.config)).await),
        }
    }

    async fn begin(&self) -> Box<dyn Writer> {
        let transaction = self.file.pool.begin_with("BEGIN IMMEDIATE").await;
        Box::new(FileWriter(transaction.unwrap()))
    }

    async fn insert_unreadable(&self) -> bool {
        self.file
            .sql(
                "INSERT INTO outbox_queue (topic, event_type, headers) VALUES ('t', 'Tested', '1')",
            )
            .await;
        true
    }

    async fn destroy(&self) {
        self.file.pool.close().await;
    }
}

/// The program that serves a handle with these settings: see `served.rs`.
fn served(config: &SqliteConfig) -> Command {
    let settings = serde_json::json!({
        "url": config.url,
        "lease": format!("{}ms", config.lease.as_millis()),
        "lanes": config.lanes,
        "done": match config.done {
            DoneMode::Keep => "keep",
            DoneMode::Delete => "delete",
        },
    });
    // Beside the folder of this program.
    let here = std::env::current_exe().unwrap();
    let program = here.ancestors().nth(2).unwrap().join("examples/served");
    assert!(
        program.exists(),
        "{} is missing; `cargo build --package outbox-sqlite --examples` makes it",
        program.display()
    );
    let mut command = Command::new(program);
    command.arg(settings.to_string());
    command
}

#[async_trait]
impl Writer for FileWriter {
    async fn enqueue(&mut self, events: &[Event]) -> Vec<Enqueued> {
        let outbox = SqliteOutbox::new();
        match events {
            [one] => vec![outbox.enqueue(&mut *self.0, one).await.unwrap()],
            many => outbox.enqueue_all(&mut *self.0, many).await.unwrap(),
        }
    }

    async fn commit(self: Box<Self>) {
        self.0.commit().await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback().await.unwrap();
    }
}

/// Both suites with this harness.
macro_rules! suites {
    ($name:ident, $done:ident, $handles:ident) => {
        mod $name {
            use super::{DoneMode, FileHarness, Handles};

            const HARNESS: FileHarness = FileHarness {
                done: DoneMode::$done,
                handles: Handles::$handles,
            };

            mod store {
                outbox_testkit::store_suite!(super::HARNESS);
            }

            mod ordered {
                outbox_testkit::ordered_suite!(super::HARNESS);
            }
        }
    };
}

suites!(keep, Keep, Here);
suites!(delete, Delete, Here);
suites!(keep_in_processes, Keep, Elsewhere);
suites!(delete_in_processes, Delete, Elsewhere);
