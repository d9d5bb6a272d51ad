//! A file that a relay can't write for a while. The disk is made full, and the file read-only, for the
//! store's own connection alone, so that no test needs a file system of its own: SQLite answers as it
//! does there.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{
    Capabilities, Enqueue as _, ErrorKind, Event, Inspect as _, Outcome, Publisher, Relay,
    RelayConfig, Route, Store as _, StoredEvent,
};
use outbox_testkit::{
    eventually,
    faulty::{FaultyStore, RecordingPublisher, StoreCall},
    log::{Lines, number},
};
use sqlx::{ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};
use tokio_util::sync::CancellationToken;

use super::SqliteQueue;
use crate::{SqliteConfig, SqliteOutbox};

const PATIENCE: Duration = Duration::from_secs(60);
const EVENTS: usize = 3_000;
const KEYS: usize = 7;

/// Calls of the store that have to fail before the file is mended.
const TRIES: u64 = 30;

#[tokio::test]
async fn a_relay_outlives_a_full_disk() {
    // No page more than there are.
    outlives(
        "PRAGMA max_page_count = 1",
        "PRAGMA max_page_count = 1000000",
        ErrorKind::OutOfSpace,
    )
    .await;
}

#[tokio::test]
async fn a_relay_outlives_a_file_that_becomes_read_only() {
    let (broken, mended) = ("PRAGMA query_only = ON", "PRAGMA query_only = OFF");
    outlives(broken, mended, ErrorKind::ReadOnly).await;
}

/// It stays up, says what is wrong in few lines, and then delivers every event once and in order.
async fn outlives(broken: &'static str, mended: &'static str, kind: ErrorKind) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let mut config = SqliteConfig::new(format!("sqlite:{}", path.display()));
    // One connection, which is made to fail; the writer has its own.
    (config.pool_size, config.lanes) = (1, 1);
    let queue = SqliteQueue::connect(config).await.unwrap();
    queue.migrate().await.unwrap();
    write(&path).await;

    let lines = Lines::default();
    let _guard = lines.follow();
    let store = Arc::new(FaultyStore::new(Arc::new(queue.clone())));
    let calls = || [StoreCall::Claim, StoreCall::Settle].map(|call| store.script().count(call));
    let publisher = Arc::new(Breaking {
        inner: RecordingPublisher::default(),
        queue: queue.clone(),
        broken,
    });
    let relay = Relay::builder(Arc::clone(&store) as _)
        .route(Route::new("r", Arc::clone(&publisher) as _))
        .config(RelayConfig {
            store_backoff_max: Duration::from_millis(50),
            ..RelayConfig::default()
        })
        .build()
        .unwrap();
    let health = relay.health();
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay.run(stop.clone()));

    let failing = eventually(PATIENCE, async || health.report().store_error);
    let error = failing.await.expect("the store fails");
    assert!(error.contains(kind.as_str()), "{error}");
    let before: u64 = calls().iter().sum();
    let tried = eventually(PATIENCE, async || {
        (calls().iter().sum::<u64>() >= before + TRIES).then_some(())
    });
    tried.await.expect("the relay tries again");
    assert!(!running.is_finished() && !health.ready());
    assert!(publisher.inner.len() < EVENTS, "nothing was left to do");

    sql(&queue, mended).await;
    let drained = eventually(PATIENCE, async || {
        let left = queue.inspect(1).await.unwrap();
        (left.pending.value + left.in_flight.value == 0).then_some(())
    });
    drained.await.expect("the relay goes on");
    assert!(health.ready(), "{:?}", health.report());
    stop.cancel();
    running.await.unwrap().unwrap();

    let events = publisher.inner.events();
    let ids: BTreeSet<_> = events.iter().map(|event| event.id).collect();
    assert_eq!((ids.len(), events.len()), (EVENTS, EVENTS));
    for key in 0..KEYS {
        let key = key.to_string();
        let of_key = events
            .iter()
            .filter(|event| event.key.as_ref() == Some(&key));
        assert!(of_key.is_sorted_by_key(|event| event.position), "key {key}");
    }
    let failed = lines.with("store failed");
    assert!((1..=2).contains(&failed.len()), "{failed:?}");
    assert!(failed[0].contains(kind.as_str()), "{failed:?}");
    let again = lines.with("store answers again");
    assert!((1..=2).contains(&again.len()), "{again:?}");
    let failures: u64 = again.iter().map(|line| number(line, "failures")).sum();
    if kind == ErrorKind::ReadOnly {
        assert_eq!(again.len(), 1, "{again:?}");
        assert!(failures >= TRIES, "{again:?}");
    } else {
        // A claim that is given back leaves room for the next one, and the store answers in between.
        assert!(failures >= 1, "{again:?}");
    }
}

/// Acknowledges everything; the file breaks while the second batch is in flight.
struct Breaking {
    inner: RecordingPublisher,
    queue: SqliteQueue,
    broken: &'static str,
}

#[async_trait]
impl Publisher for Breaking {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let outcomes = self.inner.publish(events).await;
        if self.inner.deliveries().last().map(|of| of.call) == Some(1) {
            sql(&self.queue, self.broken).await;
        }
        outcomes
    }
}

/// On the store's one connection.
async fn sql(queue: &SqliteQueue, text: &'static str) {
    let mut connection = queue.0.database.connection("test").await.unwrap();
    sqlx::query(text).execute(&mut *connection).await.unwrap();
}

/// Commits the events in one transaction, as a service does.
async fn write(path: &std::path::Path) {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = options.connect().await.unwrap();
    let events: Vec<Event> = (0..EVENTS)
        .map(|n| {
            let event = Event::new("t", "Tested").key((n % KEYS).to_string());
            event.bytes(vec![b'x'; 200]).unwrap()
        })
        .collect();
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
    SqliteOutbox::new()
        .enqueue_all(&mut tx, &events)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    connection.close().await.unwrap();
}
