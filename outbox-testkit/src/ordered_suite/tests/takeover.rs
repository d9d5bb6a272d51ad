//! I6, I9 in stores that keep order: what a new owner of a lane finds.

use std::time::Duration;

use outbox_core::{BatchSource, ErrorKind, Verdict};
use tokio::time::{Instant, sleep};

use crate::{
    ordered_suite::relay::Relay,
    store_suite::{
        StoreBench,
        bench::{LONG, SHORT, commit, event, limit, retry, text, texts},
    },
    wait::eventually,
};

/// Parked events and blocked keys outlive a stop and a crash.
pub async fn i5_a_takeover_keeps_the_holds(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    let mut first = Relay::start(&*outbox, "first").await;
    commit(&*outbox, &["A1", "A2"].map(|n| event("A", n))).await;
    let after = Duration::from_secs(4);
    let failed_at = Instant::now();
    first
        .work(BatchSource::Stream, &["A1", "A2"], |_| retry(after))
        .await;
    first.worker.lane().release().await.expect("release");

    let crashed = Relay::start(&*outbox, "crashed").await;
    assert_eq!(crashed.blocked.iter().collect::<Vec<_>>(), ["A"]);
    drop(crashed);

    let mut last = Relay::start(&*outbox, "last").await;
    assert_eq!(last.blocked.iter().collect::<Vec<_>>(), ["A"]);
    commit(&*outbox, &[event("A", "A3"), event("B", "B1")]).await;
    assert_eq!(texts(&last.deliver(1).await), ["B1"]);
    assert_eq!(texts(&last.deliver(3).await), ["A1", "A2", "A3"]);
    assert!(failed_at.elapsed() + Duration::from_millis(5) >= after);
    assert!(last.blocked.is_empty());
}

/// Whoever lost the lane is told so by each call, and its release harms nobody (I6).
pub async fn i6_the_epoch_fences(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &["1", "2", "3"].map(|n| event("A", n))).await;
    let mut overtaken = Relay::start(&*outbox, "overtaken").await;
    let old = overtaken.worker.claim_some(2).await;
    let mut owner = Relay::start(&*outbox, "owner").await;

    let lane = overtaken.worker.lanes[0].clone();
    let settlements = overtaken.verdicts(&old, |_| Verdict::Done);
    let errors = [
        lane.claim(limit(10)).await.err(),
        lane.settle(old.token, &settlements).await.err(),
        lane.renew(&[old.token]).await.err(),
        lane.blocked().await.err(),
    ];
    for (call, error) in errors.into_iter().enumerate() {
        let kind = error.map(|error| error.kind());
        assert_eq!(
            kind,
            Some(ErrorKind::LeaseLost),
            "call {call} of the overtaken one"
        );
    }
    let batch = owner.worker.claim_some(1).await;
    lane.release()
        .await
        .expect("releasing what is lost is no error");
    let settlements = owner.verdicts(&batch, |_| Verdict::Done);
    assert_eq!(
        owner.settle(&batch, &settlements).await.applied,
        1,
        "the owner was disturbed"
    );
    assert_eq!(texts(&batch.events), ["1"]);
    assert_eq!(texts(&owner.deliver(2).await), ["2", "3"]);
}

/// A lane that its owner does not name as held was given up, or the answer that gave it was lost: the
/// owner has it again at once, nothing counted, and the old handle changes nothing (I6).
pub async fn i6_a_lane_not_named_is_given_again(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &["1", "2", "3"].map(|n| event("A", n))).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let old = relay.worker.claim_some(2).await;
    let settlements = relay.verdicts(&old, |_| Verdict::Done);
    let given_up = relay.worker.lanes.remove(0);
    relay.worker.acquire().await;
    assert_eq!(relay.worker.lanes.len(), 1, "its own lane was kept from it");
    let late = given_up.settle(old.token, &settlements).await;
    let kind = late.err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LeaseLost), "the old handle settled");
    let done = relay.deliver(3).await;
    assert_eq!(texts(&done), ["1", "2", "3"]);
    let unharmed = |event: &outbox_core::StoredEvent| (event.attempts, event.crashes) == (1, 0);
    assert!(done.iter().all(unharmed), "giving a lane up was counted");
}

/// Dropping batch n drops n + 1: both come again, in order, and n + 1 can't be settled any more.
pub async fn i5_a_dropped_batch_drops_the_next(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    let sent: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    let events: Vec<_> = sent.iter().map(|n| event("A", n)).collect();
    commit(&*outbox, &events).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let _dropped = relay.worker.claim_some(3).await;
    let next = relay.worker.claim_some(3).await;
    let ends = Instant::now() + SHORT * 2;
    while Instant::now() < ends {
        // Its own lease is kept: it is void all the same once the one before it is gone.
        let _ = relay.worker.lane().renew(&[next.token]).await;
        sleep(SHORT / 8).await;
    }
    let again = relay.worker.claim_some(10).await;
    assert_eq!(text(&again.events[0]), "0");
    assert_eq!(again.events[0].crashes, 1);
    let late = relay.verdicts(&next, |_| Verdict::Done);
    let late = relay.worker.lane().settle(next.token, &late).await;
    assert!(late.is_err() || late.is_ok_and(|settled| settled.applied == 0));
    let settlements = relay.verdicts(&again, |_| Verdict::Done);
    relay.settle(&again, &settlements).await;
    let rest = relay.deliver(6 - again.events.len()).await;
    assert_eq!([texts(&again.events), texts(&rest)].concat(), sent);
}

/// A crash with a parked event in flight counts for it and keeps the order of its key.
pub async fn i9_a_crash_with_a_parked_event_in_flight(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &["1", "2"].map(|n| event("A", n))).await;
    let mut dying = Relay::start(&*outbox, "dying").await;
    dying
        .work(BatchSource::Stream, &["1", "2"], |_| retry(Duration::ZERO))
        .await;
    dying.expect(BatchSource::Parked, &["1"]).await;
    drop(dying);
    let mut next = Relay::start(&*outbox, "next").await;
    let batch = next.expect(BatchSource::Parked, &["1"]).await;
    let event = &batch.events[0];
    assert_eq!((event.attempts, event.crashes), (3, 1));
    let settlements = next.verdicts(&batch, |_| Verdict::Done);
    next.settle(&batch, &settlements).await;
    assert_eq!(texts(&next.deliver(1).await), ["2"]);
}

/// Any settle of a parked event clears its crashes.
pub async fn i9_a_settle_clears_crashes_of_parked_events(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    commit(&*outbox, &[event("A", "1")]).await;
    let again = |_: &_| retry(Duration::ZERO);
    let mut dying = Relay::start(&*outbox, "dying").await;
    dying.work(BatchSource::Stream, &["1"], again).await;
    dying.expect(BatchSource::Parked, &["1"]).await;
    drop(dying);
    let mut next = Relay::start(&*outbox, "next").await;
    for crashes in [1, 0] {
        let batch = next.expect(BatchSource::Parked, &["1"]).await;
        assert_eq!(batch.events[0].crashes, crashes);
        let settlements = next.verdicts(&batch, again);
        next.settle(&batch, &settlements).await;
    }
}

/// A clean stop with parked events in flight counts nothing.
pub async fn release_gives_parked_events_back(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &["1", "2"].map(|n| event("A", n))).await;
    let mut stopping = Relay::start(&*outbox, "stopping").await;
    stopping
        .work(BatchSource::Stream, &["1", "2"], |_| retry(Duration::ZERO))
        .await;
    stopping.expect(BatchSource::Parked, &["1"]).await;
    stopping.worker.lane().release().await.expect("release");
    let mut next = Relay::start(&*outbox, "next").await;
    next.work(BatchSource::Parked, &["1"], |event| {
        assert_eq!((event.attempts, event.crashes), (2, 0));
        Verdict::Done
    })
    .await;
    next.work(BatchSource::Parked, &["2"], |_| Verdict::Done)
        .await;
}

/// A settle whose answer was lost is answered as before, freed keys included.
pub async fn a_repeated_settle_is_answered_as_before(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &[event("A", "1")]).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    relay
        .work(BatchSource::Stream, &["1"], |_| retry(Duration::ZERO))
        .await;
    let batch = relay.expect(BatchSource::Parked, &["1"]).await;
    let settlements = relay.verdicts(&batch, |_| Verdict::Done);
    let first = relay.worker.settle(&batch, &settlements).await;
    assert_eq!(first.unblocked, ["A"]);
    assert_eq!(relay.worker.settle(&batch, &settlements).await, first);
}

/// An idle owner keeps its lane by asking for lanes, and loses it by silence.
pub async fn an_idle_lane_is_kept_by_asking(bench: &StoreBench) {
    let outbox = bench.fresh(Duration::from_millis(1_000), 1).await;
    let mut idle = Relay::start(&*outbox, "idle").await;
    let mut other = crate::store_suite::bench::Worker::idle(&*outbox, "other").await;
    let ends = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < ends {
        idle.worker.acquire().await;
        sleep(Duration::from_millis(100)).await;
    }
    other.acquire().await;
    assert!(
        other.lanes.is_empty(),
        "the lane of a living owner was taken"
    );
    let taken = eventually(crate::store_suite::bench::PATIENCE, async || {
        other.acquire().await;
        (!other.lanes.is_empty()).then_some(())
    });
    assert!(
        taken.await.is_some(),
        "the lane of a silent owner is never free"
    );
}
