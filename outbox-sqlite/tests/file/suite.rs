//! The suites that every ordered store passes, in both ways of settling.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{Enqueue as _, Enqueued, Event, OutboxStore};
use outbox_sqlite::{DoneMode, SqliteOutbox};
use outbox_testkit::store_suite::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer};
use sqlx::{Sqlite, Transaction};

use crate::support::File;

struct FileHarness {
    done: DoneMode,
}

struct FileOutbox(File);

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
        Arc::new(FileOutbox(file))
    }
}

#[async_trait]
impl Outbox for FileOutbox {
    async fn open(&self) -> Arc<dyn OutboxStore> {
        Arc::new(self.0.queue().await)
    }

    async fn begin(&self) -> Box<dyn Writer> {
        let transaction = self.0.pool.begin_with("BEGIN IMMEDIATE").await;
        Box::new(FileWriter(transaction.unwrap()))
    }

    async fn insert_unreadable(&self) -> bool {
        self.0
            .sql(
                "INSERT INTO outbox_queue (topic, event_type, headers) VALUES ('t', 'Tested', '1')",
            )
            .await;
        true
    }

    async fn destroy(&self) {
        self.0.pool.close().await;
    }
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

mod keep {
    use super::{DoneMode, FileHarness};

    outbox_testkit::store_suite!(FileHarness {
        done: DoneMode::Keep
    });
}

mod delete {
    use super::{DoneMode, FileHarness};

    outbox_testkit::store_suite!(FileHarness {
        done: DoneMode::Delete
    });
}

mod ordered_keep {
    use super::{DoneMode, FileHarness};

    outbox_testkit::ordered_suite!(FileHarness {
        done: DoneMode::Keep
    });
}

mod ordered_delete {
    use super::{DoneMode, FileHarness};

    outbox_testkit::ordered_suite!(FileHarness {
        done: DoneMode::Delete
    });
}
