//! Dedup keys of producers: one event for each key, however often and by how many it is written.

use std::collections::BTreeSet;

use outbox_core::{Enqueued, Event};
use tokio::{task::JoinSet, time::timeout};

use crate::store_suite::bench::{LONG, PATIENCE, StoreBench, Worker, text};

fn keyed(key: &str, payload: &str) -> Event {
    Event::new("t", "Tested")
        .key("k")
        .dedup_key(key)
        .bytes(payload.to_owned())
        .unwrap()
}

fn plain(payload: &str) -> Event {
    let event = Event::new("t", "Tested").key("k");
    event.bytes(payload.to_owned()).unwrap()
}

/// A repeat is told, writes nothing and fails nothing, within a call, a transaction and for ever.
pub async fn a_dedup_key_is_written_once(bench: &StoreBench) {
    use Enqueued::{Duplicate, Written};
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;

    let mut tx = outbox.begin().await;
    let batch = [
        keyed("b", "b"),
        plain("plain"),
        keyed("a", "a"),
        keyed("b", "b again"),
        plain("plain"),
    ];
    let told = tx.enqueue(&batch).await;
    assert_eq!(told, [Written, Written, Written, Duplicate, Written]);
    assert_eq!(tx.enqueue(&[keyed("a", "a again")]).await, [Duplicate]);
    assert_eq!(tx.enqueue(&[keyed("c", "c")]).await, [Written]);
    tx.commit().await;

    let mut tx = outbox.begin().await;
    // The very same event, as after a commit whose answer was lost.
    assert_eq!(tx.enqueue(&batch[..1]).await, [Duplicate]);
    let told = tx.enqueue(&[keyed("c", "c again"), plain("more")]).await;
    assert_eq!(told, [Duplicate, Written]);
    tx.commit().await;

    let seen = worker.drain_until(6).await;
    worker.assert_drained().await;
    let mut texts: Vec<_> = seen.iter().map(text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["a", "b", "c", "more", "plain", "plain"]);
}

/// What was rolled back is not known, and delivering or dying forgets no key.
pub async fn a_dedup_key_is_its_transactions(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;

    for round in 0..2 {
        let mut tx = outbox.begin().await;
        let told = tx.enqueue(&[keyed("x", "rolled back")]).await;
        assert_eq!(told, [Enqueued::Written], "{round}");
        if round == 0 {
            tx.rollback().await;
        } else {
            drop(tx);
        }
    }
    let mut tx = outbox.begin().await;
    let told = tx.enqueue(&[keyed("x", "committed")]).await;
    assert_eq!(told, [Enqueued::Written]);
    tx.commit().await;
    let seen = worker.drain_until(1).await;
    assert_eq!(text(&seen[0]), "committed");

    let mut tx = outbox.begin().await;
    let told = tx.enqueue(&[keyed("x", "again")]).await;
    assert_eq!(told, [Enqueued::Duplicate], "delivered is not forgotten");
    tx.commit().await;
    worker.assert_drained().await;
}

/// A writer with the key of an open transaction waits for its end, which decides.
pub async fn a_dedup_key_waits_for_the_first_writer(bench: &StoreBench) {
    if !bench.gates().concurrent_writers {
        return;
    }
    let outbox = bench.fresh(LONG, 1).await;
    for commits in [true, false] {
        let key = format!("commits {commits}");
        let mut first = outbox.begin().await;
        first.enqueue(&[keyed(&key, "first")]).await;
        let mut second = outbox.begin().await;
        let event = [keyed(&key, "second")];
        let both = async {
            let end = async {
                // The other one is polled first, and so is waiting by now.
                tokio::task::yield_now().await;
                if commits {
                    first.commit().await;
                } else {
                    first.rollback().await;
                }
            };
            let (told, ()) = tokio::join!(biased; second.enqueue(&event), end);
            second.commit().await;
            told
        };
        let told = timeout(PATIENCE, both).await.expect("the wait ends");
        let expected = if commits {
            Enqueued::Duplicate
        } else {
            Enqueued::Written
        };
        assert_eq!(told, [expected]);
    }
    let worker = Worker::start(&*outbox, "relay").await;
    let texts: BTreeSet<_> = worker
        .drain_until(2)
        .await
        .iter()
        .map(|event| text(event).clone())
        .collect();
    assert_eq!(texts, BTreeSet::from(["first".into(), "second".into()]));
    worker.assert_drained().await;
}

/// Batches with the same keys in different orders, written at the same time, do not block each
/// other for ever, and one event of each key is there.
pub async fn batches_with_dedup_keys_do_not_deadlock(bench: &StoreBench) {
    const KEYS: usize = 40;
    if !bench.gates().concurrent_writers {
        return;
    }
    let outbox = bench.fresh(LONG, 1).await;
    let mut writers = JoinSet::new();
    for writer in 0..6 {
        let outbox = std::sync::Arc::clone(&outbox);
        writers.spawn(async move {
            let mut written = 0;
            for round in 0..5 {
                let mut events: Vec<_> = (0..KEYS)
                    .map(|n| keyed(&format!("{round}/{n}"), &format!("{round}/{n}")))
                    .collect();
                if writer % 2 == 0 {
                    events.reverse();
                }
                events.rotate_left(writer * 7);
                let mut tx = outbox.begin().await;
                let told = tx.enqueue(&events).await;
                tx.commit().await;
                written += told.iter().filter(|t| **t == Enqueued::Written).count();
            }
            written
        });
    }
    let all = timeout(PATIENCE, writers.join_all());
    let written: usize = all.await.expect("no deadlock").into_iter().sum();
    assert_eq!(written, 5 * KEYS);
    let worker = Worker::start(&*outbox, "relay").await;
    let seen = worker.drain_until(written).await;
    let texts: BTreeSet<_> = seen.iter().map(|event| text(event).clone()).collect();
    assert_eq!(texts.len(), written);
    worker.assert_drained().await;
}
