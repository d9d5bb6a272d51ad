//! Writing by the API and by SQL: whole or not at all, byte for byte.

use std::{collections::BTreeMap, future::poll_fn, pin::pin, task::Poll};

use outbox_core::{Enqueue as _, ErrorKind, Inspect as _};
use outbox_sqlite::SqliteOutbox;

use crate::support::{File, claim, event};

#[tokio::test]
async fn sql_writers_write_any_form() {
    let mut file = File::migrated().await;
    file.config.lanes = 1;
    file.sql(
        r#"INSERT INTO outbox_queue (topic, event_type, aggregate_id, payload) VALUES ('t', 'text', 'a', '{"b": 1.10}');
        INSERT INTO outbox_queue (topic, event_type, key, payload) VALUES ('t', 'blob', '', x'00ff');
        INSERT INTO outbox_queue (topic, event_type, headers) VALUES ('t', 'null', '[["h","1"],["h","2"]]');
        INSERT INTO outbox_queue (topic, event_type, next_attempt_at) VALUES ('t', 'later', unixepoch('now', '+1 hour') * 1000);
        INSERT INTO outbox_queue (topic, event_type, key) VALUES ('t', 'bad', CAST(x'ff' AS TEXT));
        INSERT INTO outbox_queue (topic, event_type, dedup_key) VALUES ('t', 'first', 'd');
        INSERT INTO outbox_queue (topic, event_type, dedup_key) VALUES ('t', 'repeat', 'd');"#,
    )
    .await;
    let queue = file.queue().await;
    let batch = claim(&queue).await;
    let types: Vec<&str> = batch.events.iter().map(|e| &*e.event_type).collect();
    assert_eq!(types, ["text", "blob", "null", "first"]);
    let [text, blob, null, _] = &batch.events[..] else {
        panic!("{batch:?}")
    };
    assert_eq!(text.payload.as_deref(), Some(&br#"{"b": 1.10}"#[..]));
    assert_eq!(text.content_type.as_deref(), Some("application/json"));
    assert_eq!(
        (text.key.as_deref(), blob.key.as_deref()),
        (Some("a"), Some(""))
    );
    assert_eq!(blob.payload.as_deref(), Some(&[0, 255][..]));
    assert_eq!((&null.payload, null.headers.len()), (&None, 2));
    assert_eq!(batch.unreadable.len(), 1);
    assert_eq!(batch.unreadable[0].error.kind(), ErrorKind::InvalidEvent);
    assert_eq!(queue.inspect(10).await.unwrap().scheduled.value, 1);
}

#[tokio::test]
async fn an_event_outside_a_transaction_is_refused() {
    let file = File::migrated().await;
    let mut connection = file.pool.acquire().await.unwrap();
    let outbox = SqliteOutbox::new();
    let error = outbox.enqueue(&mut connection, &event("k")).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
    let outbox = outbox.allow_autocommit();
    outbox.enqueue(&mut connection, &event("k")).await.unwrap();
    let written = file.queue().await.inspect(10).await.unwrap();
    assert_eq!(written.pending.value, 1);
}

/// Dropped wherever it waits, a call has written all or nothing and leaves no lock behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_enqueue_is_whole_or_nothing() {
    const EVENTS: usize = 7;
    const ROUNDS: usize = 20;
    let file = File::migrated().await;
    let queue = file.queue().await;
    let mut cancelled = 0;
    let mut answered = Vec::new();
    while answered.len() < ROUNDS {
        for polls in 1.. {
            // A key for each call, so that its events can be told apart.
            let key = format!("{}-{polls}", answered.len());
            let events = vec![event(&key); EVENTS];
            match polled(polls, queue.enqueue(&events)).await {
                None => cancelled += 1,
                Some(told) => {
                    assert_eq!(told.unwrap().len(), EVENTS);
                    answered.push(key);
                    break;
                }
            }
        }
    }
    assert!(cancelled > 2 * ROUNDS, "only {cancelled} cancelled");
    queue
        .enqueue(&[event("last")])
        .await
        .expect("no lock was left");
    let calls: BTreeMap<String, i64> =
        sqlx::query_as("SELECT key, count(*) FROM outbox_queue WHERE key <> 'last' GROUP BY key")
            .fetch_all(&file.pool)
            .await
            .unwrap()
            .into_iter()
            .collect();
    assert!(
        calls.values().all(|n| usize::try_from(*n) == Ok(EVENTS)),
        "a part is there: {calls:?}"
    );
    assert!(
        answered.iter().all(|key| calls.contains_key(key)),
        "{calls:?}"
    );
}

/// What the call gives; none when it still waits after so many polls: it is dropped then.
async fn polled<F: Future>(polls: usize, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    let mut left = polls;
    poll_fn(|context| {
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
