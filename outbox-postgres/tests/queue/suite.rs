//! The suite that every store passes: in both ways of settling, and with partitions.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{Enqueue as _, Enqueued, Event, OutboxStore, Store as _};
use outbox_postgres::{DoneMode, Partitions, PgConfig, PgOutbox, PgQueue};
use outbox_testkit::store_suite::{Outbox, StoreGates, StoreHarness, StoreOptions, Writer};
use sqlx::{Postgres, Transaction};

use crate::support::Db;

struct QueueHarness {
    done: DoneMode,
    partitions: Partitions,
}

struct QueueOutbox {
    db: Db,
    config: PgConfig,
}

struct QueueWriter {
    transaction: Transaction<'static, Postgres>,
    outbox: PgOutbox,
}

#[async_trait]
impl StoreHarness for QueueHarness {
    fn gates(&self) -> StoreGates {
        StoreGates {
            unreadable: true,
            sessions: true,
            concurrent_writers: true,
            keeps_delivered: self.done == DoneMode::Keep,
        }
    }

    async fn fresh(&self, options: StoreOptions) -> Arc<dyn Outbox> {
        let db = Db::create("UTF8").await;
        let mut config = db.config();
        config.lease = options.lease;
        config.workers = options.lanes;
        config.done = self.done;
        config.partitions = Some(self.partitions);
        let queue = PgQueue::connect(config.clone()).await.unwrap();
        queue.migrate().await.unwrap();
        Arc::new(QueueOutbox { db, config })
    }
}

#[async_trait]
impl Outbox for QueueOutbox {
    async fn open(&self) -> Arc<dyn OutboxStore> {
        Arc::new(PgQueue::connect(self.config.clone()).await.unwrap())
    }

    async fn begin(&self) -> Box<dyn Writer> {
        Box::new(QueueWriter {
            transaction: self.db.pool.begin().await.unwrap(),
            outbox: PgOutbox::new(&self.config.schema).unwrap(),
        })
    }

    async fn insert_unreadable(&self) -> bool {
        self.db
            .sql(
                "INSERT INTO outbox.queue (topic, event_type, headers) VALUES ('t', 'Tested', '1')",
            )
            .await;
        true
    }

    async fn open_transactions(&self) -> Option<u64> {
        let open = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'outbox' AND xact_start IS NOT NULL";
        self.db.number(open).await.try_into().ok()
    }

    async fn destroy(&self) {
        self.db.destroy().await;
    }
}

#[async_trait]
impl Writer for QueueWriter {
    async fn enqueue(&mut self, events: &[Event]) -> Vec<Enqueued> {
        let Self {
            outbox,
            transaction,
        } = self;
        match events {
            [one] => vec![outbox.enqueue(transaction, one).await.unwrap()],
            many => outbox.enqueue_all(transaction, many).await.unwrap(),
        }
    }

    async fn commit(self: Box<Self>) {
        self.transaction.commit().await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.transaction.rollback().await.unwrap();
    }
}

mod keep {
    use super::{DoneMode, Partitions, QueueHarness};

    outbox_testkit::store_suite!(QueueHarness {
        done: DoneMode::Keep,
        partitions: Partitions::None,
    });
}

mod partitioned {
    use super::{DoneMode, Partitions, QueueHarness};

    outbox_testkit::store_suite!(QueueHarness {
        done: DoneMode::Keep,
        partitions: Partitions::Daily,
    });
}

mod delete {
    use super::{DoneMode, Partitions, QueueHarness};

    outbox_testkit::store_suite!(QueueHarness {
        done: DoneMode::Delete,
        partitions: Partitions::None,
    });
}
