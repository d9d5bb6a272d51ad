//! What a settle does, verdict by verdict; I12: when a retry is due.

use std::time::Duration;

use outbox_core::{DeadFilter, DeadReason, Event, Verdict};
use tokio::time::Instant;

use crate::store_suite::bench::{
    LONG, StoreBench, Worker, all, commit, dead, each, event, events, note, retry, text, texts,
};

/// What the clocks of a program and a database on one machine may differ by within a test.
const CLOCK_SLACK: Duration = Duration::from_millis(5);

/// A retry is not claimed before its delay and is claimed after it; the attempt counts.
pub async fn i12_a_retry_is_never_early(bench: &StoreBench) {
    let after = Duration::from_millis(500);
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(10).await;
    assert_eq!(batch.events[0].failing_for, None);
    let settled_at = Instant::now();
    worker.settle_all(&batch, &retry(after)).await;
    let again = worker.claim_some(10).await;
    assert!(
        settled_at.elapsed() + CLOCK_SLACK >= after,
        "after {:?}",
        settled_at.elapsed()
    );
    let event = &again.events[0];
    assert_eq!(
        (event.id, event.attempts, event.crashes),
        (batch.events[0].id, 2, 0)
    );
    let failing = event.failing_for.expect("it has failed");
    assert!(
        failing + CLOCK_SLACK >= after && failing < Duration::from_secs(60),
        "{failing:?}"
    );
    worker.settle_all(&again, &Verdict::Done).await;
    worker.assert_drained().await;
}

/// A producer's delay holds the event back; others flow meanwhile.
pub async fn i12_deliver_after_is_never_early(bench: &StoreBench) {
    let delay = Duration::from_millis(700);
    let outbox = bench.fresh(LONG, 1).await;
    let later = Event::new("t", "T")
        .key("k")
        .deliver_after(delay)
        .bytes("later")
        .expect("valid");
    let inserted_at = Instant::now();
    commit(&*outbox, &[later, event("k", "at once")]).await;
    let worker = Worker::start(&*outbox, "relay").await;
    assert_eq!(texts(&worker.drain_until(1).await), ["at once"]);
    let batch = worker.claim_some(10).await;
    assert!(
        inserted_at.elapsed() + CLOCK_SLACK >= delay,
        "after {:?}",
        inserted_at.elapsed()
    );
    assert_eq!(texts(&batch.events), ["later"]);
    assert_eq!(batch.events[0].attempts, 1);
    worker.settle_all(&batch, &Verdict::Done).await;
    worker.assert_drained().await;
}

/// Case backoff-overflow: the longest delay that a policy allows is stored, not refused.
pub async fn backoff_overflow(bench: &StoreBench) {
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(2)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(10).await;
    let settlements = each(&batch, |event| match text(event).as_str() {
        "payload-0" => retry(century),
        _ => Verdict::Defer {
            after: century,
            note: note("no such topic"),
        },
    });
    assert_eq!(worker.settle(&batch, &settlements).await.applied, 2);
    worker.assert_drained().await;
    assert_eq!(
        worker
            .store
            .inspect(100)
            .await
            .expect("inspect")
            .scheduled
            .value,
        2
    );
}

/// Defer and Return give the attempt back, Retry does not.
pub async fn attempts_are_given_back_by_defer_and_return(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let steps = [
        (Verdict::Return, 1),
        (retry(Duration::ZERO), 1),
        (Verdict::Return, 2),
        (
            Verdict::Defer {
                after: Duration::ZERO,
                note: note("no such topic"),
            },
            2,
        ),
        (retry(Duration::ZERO), 2),
        (Verdict::Done, 3),
    ];
    for (verdict, attempts) in steps {
        let batch = worker.claim_some(10).await;
        assert_eq!(batch.events[0].attempts, attempts, "before {verdict:?}");
        let settled = worker.settle_all(&batch, &verdict).await;
        assert_eq!((settled.applied, settled.lost), (1, 0));
    }
    worker.assert_drained().await;
}

/// A batch may carry every verdict at once; each event gets its own.
pub async fn verdicts_of_one_batch_may_differ(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(10)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(10).await;
    assert_eq!(batch.events.len(), 10);
    let settlements = each(&batch, |event| match text(event).as_str() {
        "payload-2" => retry(Duration::ZERO),
        "payload-4" => Verdict::Defer {
            after: Duration::ZERO,
            note: note("later"),
        },
        "payload-5" => dead(DeadReason::Rejected, "too odd", true),
        "payload-8" | "payload-9" => Verdict::Return,
        _ => Verdict::Done,
    });
    let settled = worker.settle(&batch, &settlements).await;
    assert_eq!((settled.applied, settled.lost), (10, 0));

    let mut seen: Vec<_> = worker
        .drain_until(4)
        .await
        .iter()
        .map(|event| (text(event), event.attempts))
        .collect();
    seen.sort();
    let expected = [
        ("payload-2", 2),
        ("payload-4", 1),
        ("payload-8", 1),
        ("payload-9", 1),
    ];
    assert_eq!(
        seen,
        expected.map(|(text, attempts)| (text.to_owned(), attempts))
    );
    worker.assert_drained().await;
    assert_eq!(
        worker
            .store
            .count(&DeadFilter::default())
            .await
            .expect("count"),
        1
    );
}

/// A settle whose answer was lost may be repeated: the second changes nothing and says so, or
/// gives the first one's answer.
pub async fn settling_twice_changes_nothing(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(3)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(10).await;
    let settlements = each(&batch, |event| match text(event).as_str() {
        "payload-0" => Verdict::Done,
        "payload-1" => dead(DeadReason::Rejected, "no", true),
        _ => retry(Duration::from_secs(3_600)),
    });
    let first = worker.settle(&batch, &settlements).await;
    assert_eq!((first.applied, first.lost), (3, 0));
    let second = worker.settle(&batch, &settlements).await;
    assert!(
        second == first || (second.applied, second.lost) == (0, 3),
        "{second:?}"
    );
    let requeued = worker
        .store
        .requeue(&DeadFilter::default(), 10)
        .await
        .expect("requeue");
    assert_eq!(requeued, 1);
    let third = worker.settle(&batch, &settlements).await;
    assert!(
        third == first || (third.applied, third.lost) == (0, 3),
        "{third:?}"
    );
    assert_eq!(
        texts(&worker.drain_until(1).await),
        ["payload-1"],
        "the requeued one was not killed again"
    );
}

/// Done is final: no later claim, no lease end brings it back.
pub async fn i2_done_is_final(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(3)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(10).await;
    assert_eq!(
        worker
            .lane()
            .settle(batch.token, &all(&batch, &Verdict::Done))
            .await
            .expect("settle")
            .applied,
        3
    );
    worker.lane().release().await.expect("release");
    let next = Worker::start(&*outbox, "next").await;
    next.assert_drained().await;
    let state = next.store.inspect(100).await.expect("inspect");
    assert_eq!(
        (
            state.pending.value,
            state.in_flight.value,
            state.scheduled.value
        ),
        (0, 0, 0)
    );
}
