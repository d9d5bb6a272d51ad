//! What can be wrong with a file, and what is told of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use outbox_core::{
    AcquireRequest, ClaimLimit, Enqueue as _, ErrorKind, Event, Inspect as _, Lane, Retention as _,
    Settlement, Store as _, TopicSet, Verdict, WorkerId,
};
use outbox_sqlite::{SqliteOutbox, SqliteQueue};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::support::{File, event};

const LIMIT: ClaimLimit = ClaimLimit {
    events: 10,
    bytes: 1_000_000,
};

async fn lane(queue: &SqliteQueue) -> Arc<dyn Lane> {
    let request = AcquireRequest {
        route: "r",
        topics: &TopicSet::all(),
        worker: &WorkerId("w".to_owned()),
        held: &[],
    };
    queue.acquire(&request).await.unwrap().lanes.remove(0)
}

async fn writer(file: &File) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(file.path());
    options.connect().await.unwrap()
}

/// Another writer's long transaction delays a settle up to the limit and fails it as something to be
/// repeated; the runtime's only thread goes on meanwhile.
#[tokio::test]
async fn a_busy_file_is_waited_for_off_the_runtime_and_then_told() {
    let mut file = File::migrated().await;
    file.config.busy_timeout = Duration::from_millis(300);
    file.config.lanes = 1;
    let queue = file.queue().await;
    queue.enqueue(&[event("k")]).await.unwrap();
    let lane = lane(&queue).await;
    let batch = lane.claim(LIMIT).await.unwrap();
    let settlements = [Settlement {
        position: batch.events[0].position,
        verdict: Verdict::Done,
    }];

    let mut other = writer(&file).await;
    let tx = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let ticks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&ticks);
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let error = lane.settle(batch.token, &settlements).await.unwrap_err();
    ticking.abort();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("busy_timeout"), "{error}");
    assert!(!error.kind().needs_operator());
    let ticks = ticks.load(Ordering::Relaxed);
    assert!(ticks >= 10, "the runtime stood still: {ticks} ticks");
    // What only reads, or asks whether it could write, does not wait for a writer.
    let checked = tokio::time::timeout(Duration::from_millis(200), queue.check());
    checked.await.expect("a check waited").unwrap();
    assert!(lane.claim(LIMIT).await.unwrap().is_empty());
    assert_eq!(queue.inspect(10).await.unwrap().in_flight.value, 1);

    tx.rollback().await.unwrap();
    let settled = lane.settle(batch.token, &settlements).await.unwrap();
    assert_eq!(settled.applied, 1);
}

/// A transaction that began as a reader can't write behind another's commit.
#[tokio::test]
async fn a_transaction_that_read_first_is_told_to_begin_immediately() {
    let file = File::migrated().await;
    let mut connection = writer(&file).await;
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM outbox_queue")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    file.queue().await.enqueue(&[event("k")]).await.unwrap();
    let error = SqliteOutbox::new()
        .enqueue(&mut tx, &event("k"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
}

#[tokio::test]
async fn a_full_and_a_read_only_file_are_told_apart() {
    let file = File::migrated().await;
    let mut full = writer(&file).await;
    sqlx::query("PRAGMA max_page_count = 1")
        .execute(&mut full)
        .await
        .unwrap();
    let large = Event::new("t", "T").bytes(vec![7; 500_000]).unwrap();
    let mut tx = full.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let outbox = SqliteOutbox::new();
    let error = outbox.enqueue(&mut tx, &large).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
    drop(tx);

    let options = SqliteConnectOptions::new().filename(file.path());
    let mut reader = options.read_only(true).connect().await.unwrap();
    let mut tx = reader.begin().await.unwrap();
    let error = outbox.enqueue(&mut tx, &event("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
}

/// SQLite goes on in the file that has no name any more, and everything would be lost with it.
#[tokio::test]
async fn a_deleted_or_replaced_file_is_not_written() {
    let mut file = File::migrated().await;
    file.config.lanes = 1;
    let queue = file.queue().await;
    queue.check().await.unwrap();
    let lane = lane(&queue).await;
    std::fs::rename(file.path(), file.path().with_extension("old")).unwrap();
    for replaced in [false, true] {
        if replaced {
            File::migrate(&file.config).await;
        }
        let errors = [
            queue.enqueue(&[event("k")]).await.err(),
            lane.claim(LIMIT).await.err(),
            queue.inspect(10).await.err(),
            queue
                .clean(&outbox_core::CleanRequest::default())
                .await
                .err(),
        ];
        for error in errors {
            let error = error.expect("a file that is not there was used");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("restart"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_is_no_outbox_is_told() {
    let file = File::missing();
    let kind = async |queue: &SqliteQueue| queue.check().await.unwrap_err().kind();
    assert_eq!(kind(&file.queue().await).await, ErrorKind::Configuration);
    assert!(!file.path().exists(), "a check made the file");

    std::fs::write(file.path(), "text of some other program\n".repeat(200)).unwrap();
    assert_eq!(kind(&file.queue().await).await, ErrorKind::Configuration);

    // A database without the tables.
    std::fs::write(file.path(), "").unwrap();
    assert_eq!(kind(&file.queue().await).await, ErrorKind::SchemaMissing);
    let error = file.queue().await.enqueue(&[event("k")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
}

/// A file of a newer program is not touched (the version fence).
#[tokio::test]
async fn a_newer_schema_is_refused() {
    let file = File::migrated().await;
    file.sql("INSERT INTO outbox_migration (version, name) VALUES (99, 'future')")
        .await;
    let queue = file.queue().await;
    let errors = [queue.check().await.err(), queue.migrate().await.err()];
    for error in errors {
        assert_eq!(error.map(|e| e.kind()), Some(ErrorKind::SchemaNewer));
    }
}

/// Several migrators of one new file at once: one makes the schema, the others find it.
#[tokio::test(flavor = "multi_thread")]
async fn migrators_wait_for_each_other() {
    let file = File::missing();
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let queue = file.queue().await;
        tasks.push(tokio::spawn(async move { queue.migrate().await }));
    }
    let mut made = 0;
    for task in tasks {
        made += usize::from(task.await.unwrap().unwrap().from == 0);
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn a_lane_that_was_given_back_has_neither_owner_nor_lease() {
    let file = File::migrated().await;
    let queue = file.queue().await;
    let lane = lane(&queue).await;
    let told = |state: outbox_core::Inspection| {
        let lanes = state.lanes.into_iter();
        let told = lanes.map(|lane| (lane.owner.is_some(), !lane.lease_left.is_zero()));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(queue.inspect(10).await.unwrap()), [(true, true); 2]);
    lane.release().await.unwrap();
    assert_eq!(
        told(queue.inspect(10).await.unwrap()),
        [(false, false), (true, true)]
    );
}
