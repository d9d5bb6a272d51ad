//! I5, I7: failures park with their followers; everything else flows.

use std::time::Duration;

use outbox_core::{BatchSource, DeadReason, Event, Verdict};

use crate::{
    ordered_suite::relay::Relay,
    store_suite::{
        StoreBench,
        bench::{LONG, PATIENCE, commit, dead, event, note, retry, text, texts},
    },
    wait::eventually,
};

/// Long enough to see that nothing comes early, short enough to wait for.
const DELAY: Duration = Duration::from_millis(400);

/// What committed first comes first, per key and over all.
pub async fn i5_events_come_in_commit_order(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut sent = Vec::new();
    for n in 0..60 {
        sent.push(n.to_string());
        commit(
            &*outbox,
            &[event(&format!("key-{}", n % 7), &n.to_string())],
        )
        .await;
    }
    let relay = Relay::start(&*outbox, "relay").await;
    let seen = relay.worker.drain_until(60).await;
    assert_eq!(texts(&seen), sent);
    assert!(seen.is_sorted_by(|a, b| a.position < b.position));
}

/// Case retry-overtakes-key: followers wait while the first one's retry is not due, then go in
/// order; afterwards the key flows from the stream again.
pub async fn retry_overtakes_key(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(
        &*outbox,
        &[event("A", "A1"), event("B", "B1"), event("A", "A2")],
    )
    .await;
    let fail_a1 = |event: &outbox_core::StoredEvent| match text(event).as_str() {
        "A1" => retry(DELAY),
        _ => Verdict::Done,
    };
    let settled = relay
        .work(BatchSource::Stream, &["A1", "B1", "A2"], fail_a1)
        .await;
    assert_eq!((settled.applied, settled.unblocked.len()), (3, 0));

    commit(&*outbox, &[event("A", "A3"), event("B", "B2")]).await;
    relay
        .work(BatchSource::Stream, &["A3", "B2"], |_| Verdict::Done)
        .await;
    relay.assert_nothing_due().await;

    let settled = relay.work(BatchSource::Parked, &["A1"], |event| {
        assert_eq!(event.attempts, 2);
        Verdict::Done
    });
    assert_eq!(
        settled.await.unblocked,
        Vec::<String>::new(),
        "followers are left"
    );
    let settled = relay.work(BatchSource::Parked, &["A2", "A3"], |event| {
        assert_eq!(event.attempts, 1, "holding is no attempt");
        Verdict::Done
    });
    assert_eq!(settled.await.unblocked, ["A"]);

    commit(&*outbox, &[event("A", "A4")]).await;
    relay
        .work(BatchSource::Stream, &["A4"], |_| Verdict::Done)
        .await;
    relay.assert_nothing_due().await;
}

/// A held event that fails in its turn blocks those behind it again.
pub async fn i5_a_held_event_may_fail_too(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["1", "2", "3"].map(|n| event("A", n))).await;
    relay
        .work(BatchSource::Stream, &["1", "2", "3"], |_| {
            retry(Duration::ZERO)
        })
        .await;
    relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    let settled = relay
        .work(BatchSource::Parked, &["2", "3"], |_| retry(Duration::ZERO))
        .await;
    assert!(settled.unblocked.is_empty());
    relay
        .work(BatchSource::Parked, &["2"], |_| Verdict::Done)
        .await;
    let settled = relay
        .work(BatchSource::Parked, &["3"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
}

/// While the head of a key is in flight nothing behind it is handed out.
pub async fn i5_a_parked_head_in_flight_holds_its_followers(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["1", "2", "3"].map(|n| event("A", n))).await;
    relay
        .work(BatchSource::Stream, &["1", "2", "3"], |_| {
            retry(Duration::ZERO)
        })
        .await;
    let head = relay.expect(BatchSource::Parked, &["1"]).await;
    relay.assert_nothing_due().await;
    let settlements = relay.verdicts(&head, |_| Verdict::Done);
    relay.settle(&head, &settlements).await;
    relay
        .work(BatchSource::Parked, &["2", "3"], |_| Verdict::Done)
        .await;
}

/// Many held followers come in order over several batches.
pub async fn i5_held_events_are_drained_in_order(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let sent: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let events: Vec<_> = sent.iter().map(|n| event("A", n)).collect();
    commit(&*outbox, &events).await;
    let all: Vec<&str> = sent.iter().map(String::as_str).collect();
    relay
        .work(BatchSource::Stream, &all, |_| retry(Duration::ZERO))
        .await;
    let done = relay.deliver(50).await;
    assert_eq!(texts(&done), sent);
    assert!(relay.blocked.is_empty());
}

/// I7: a blocked key with many followers does not hold up the others.
pub async fn i7_other_keys_flow(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &[event("poisoned", "first")]).await;
    relay
        .work(BatchSource::Stream, &["first"], |_| {
            retry(Duration::from_secs(3_600))
        })
        .await;
    for round in 0..10 {
        let mut events = vec![event("poisoned", "follower"); 20];
        events.push(event("healthy", &format!("healthy {round}")));
        commit(&*outbox, &events).await;
    }
    let done = relay.deliver(10).await;
    let expected: Vec<_> = (0..10).map(|round| format!("healthy {round}")).collect();
    assert_eq!(texts(&done), expected);
    relay.assert_nothing_due().await;
    let state = relay.worker.store.inspect(1_000).await.expect("inspect");
    assert_eq!((state.held.value, state.blocked_keys.value), (200, 1));
    assert_eq!((state.scheduled.value, state.pending.value), (1, 0));
}

/// Events without a key block nobody, each other neither.
pub async fn i7_events_without_a_key_block_nobody(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let unkeyed = |text: &str| Event::new("t", "T").bytes(text.to_owned()).expect("valid");
    commit(&*outbox, &["1", "2", "3"].map(unkeyed)).await;
    relay
        .work(BatchSource::Stream, &["1", "2", "3"], |event| {
            match text(event).as_str() {
                "1" => retry(Duration::ZERO),
                "2" => dead(DeadReason::Rejected, "no", true),
                _ => Verdict::Done,
            }
        })
        .await;
    assert!(
        relay
            .worker
            .lane()
            .blocked()
            .await
            .expect("blocked")
            .is_empty()
    );
    let settled = relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    assert!(settled.unblocked.is_empty());
    relay.assert_nothing_due().await;
}

/// An empty key is a key.
pub async fn i5_an_empty_key_is_a_key(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["1", "2"].map(|n| event("", n))).await;
    relay
        .work(BatchSource::Stream, &["1", "2"], |_| retry(Duration::ZERO))
        .await;
    assert_eq!(relay.worker.lane().blocked().await.expect("blocked"), [""]);
    relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    let settled = relay
        .work(BatchSource::Parked, &["2"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, [""]);
}

/// A deferred event (its topic is at fault) blocks its key without an attempt.
pub async fn i5_a_deferred_event_blocks_its_key(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["1", "2"].map(|n| event("A", n))).await;
    let defer = |_: &_| Verdict::Defer {
        after: Duration::ZERO,
        note: note("no such topic"),
    };
    relay.work(BatchSource::Stream, &["1", "2"], defer).await;
    for _ in 0..3 {
        relay
            .work(BatchSource::Parked, &["1"], |event| {
                assert_eq!(event.attempts, 1);
                assert!(event.failing_for.is_some());
                defer(event)
            })
            .await;
    }
    relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    relay
        .work(BatchSource::Parked, &["2"], |_| Verdict::Done)
        .await;
}

/// A parked event that is returned is claimable again as it was.
pub async fn a_parked_event_may_be_returned(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &["1", "2"].map(|n| event("A", n))).await;
    relay
        .work(BatchSource::Stream, &["1", "2"], |_| retry(Duration::ZERO))
        .await;
    for _ in 0..3 {
        let settled = relay.work(BatchSource::Parked, &["1"], |event| {
            assert_eq!(event.attempts, 2);
            Verdict::Return
        });
        assert!(settled.await.unblocked.is_empty());
    }
    relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    relay
        .work(BatchSource::Parked, &["2"], |_| Verdict::Done)
        .await;
}

/// Of a returned batch nothing is lost or passed: the stream goes on where the first returned one
/// stands, and batches claimed behind it are void.
pub async fn a_return_rewinds_the_stream(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let sent: Vec<String> = (0..6).map(|n| n.to_string()).collect();
    let events: Vec<_> = sent.iter().map(|n| event(n, n)).collect();
    commit(&*outbox, &events).await;
    let first = relay.worker.claim_some(4).await;
    let second = relay.worker.claim_some(4).await;
    let settlements = relay.verdicts(&first, |event| match text(event).as_str() {
        "2" => Verdict::Return,
        _ => Verdict::Done,
    });
    assert_eq!(relay.settle(&first, &settlements).await.applied, 4);
    let settlements = relay.verdicts(&second, |_| Verdict::Done);
    let late = relay.worker.lane().settle(second.token, &settlements).await;
    assert!(
        late.is_err() || late.is_ok_and(|settled| settled.applied == 0),
        "a void batch was settled"
    );
    let done = relay.deliver(4).await;
    assert_eq!(texts(&done), ["2", "3", "4", "5"]);
    assert!(
        done.iter()
            .all(|event| (event.attempts, event.crashes) == (1, 0))
    );
}

/// A producer's delay blocks no key; the event comes when its time has come.
pub async fn a_scheduled_event_blocks_no_key(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let later = Event::new("t", "T")
        .key("A")
        .deliver_after(DELAY)
        .bytes("later")
        .expect("valid");
    commit(&*outbox, &[event("A", "1"), later, event("A", "2")]).await;
    relay
        .work(BatchSource::Stream, &["1", "2"], |_| Verdict::Done)
        .await;
    assert!(
        relay
            .worker
            .lane()
            .blocked()
            .await
            .expect("blocked")
            .is_empty()
    );
    let done = relay.deliver(1).await;
    assert_eq!(texts(&done), ["later"]);
    relay.assert_nothing_due().await;
}

/// A scheduled event whose time has come waits for earlier events of its key.
pub async fn i5_a_scheduled_event_waits_for_earlier_ones(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let soon = Duration::from_millis(100);
    let later = Event::new("t", "T")
        .key("A")
        .deliver_after(soon)
        .bytes("later")
        .expect("valid");
    commit(&*outbox, &[event("A", "1"), later]).await;
    relay
        .work(BatchSource::Stream, &["1"], |_| retry(DELAY * 2))
        .await;
    let done = relay.deliver(2).await;
    assert_eq!(texts(&done), ["1", "later"]);
}

/// A scheduled event whose time has come waits for earlier events of its key in the stream too: in
/// flight, returned and not read again, and not read while something before them is parked.
pub async fn i5_a_scheduled_event_waits_for_the_stream(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    let soon = Duration::from_millis(100);
    let later = Event::new("t", "T")
        .key("A")
        .deliver_after(soon)
        .bytes("later")
        .expect("valid");
    commit(&*outbox, &[event("A", "1"), event("A", "2"), later]).await;
    let batch = relay.expect(BatchSource::Stream, &["1", "2"]).await;
    tokio::time::sleep(soon * 2).await;
    relay.assert_nothing_due().await;
    let back = relay.verdicts(&batch, |_| Verdict::Return);
    relay.settle(&batch, &back).await;

    // The head is parked and gone while its follower is still in flight.
    let head = relay.worker.claim_some(1).await;
    assert_eq!(texts(&head.events), ["1"]);
    let behind = relay.expect(BatchSource::Stream, &["2"]).await;
    let failed = relay.verdicts(&head, |_| retry(Duration::ZERO));
    relay.settle(&head, &failed).await;
    relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    relay.assert_nothing_due().await;
    relay.blocked.insert("A".to_owned());
    let done = relay.verdicts(&behind, |_| Verdict::Done);
    relay.settle(&behind, &done).await;
    assert_eq!(texts(&relay.deliver(2).await), ["2", "later"]);
}

/// An event held although its key was freed meanwhile is not forgotten.
pub async fn i2_an_event_held_behind_nothing_comes_back(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &[event("A", "1")]).await;
    relay.blocked.insert("A".to_owned());
    relay
        .work(BatchSource::Stream, &["1"], |_| Verdict::Done)
        .await;
    let settled = relay
        .work(BatchSource::Parked, &["1"], |_| Verdict::Done)
        .await;
    assert_eq!(settled.unblocked, ["A"]);
}

/// An event that was in flight while its key was freed is held all the same, and stays in order; the
/// key is named as free in the end.
pub async fn i5_a_key_freed_while_an_event_is_in_flight(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let mut relay = Relay::start(&*outbox, "relay").await;
    commit(&*outbox, &[event("A", "1")]).await;
    relay
        .work(BatchSource::Stream, &["1"], |_| retry(Duration::ZERO))
        .await;
    let head = relay.expect(BatchSource::Parked, &["1"]).await;
    commit(&*outbox, &[event("A", "2")]).await;
    let behind = relay.expect(BatchSource::Stream, &["2"]).await;
    let of_behind = relay.verdicts(&behind, |_| Verdict::Done);
    let of_head = relay.verdicts(&head, |_| Verdict::Done);
    relay.settle(&head, &of_head).await;
    relay.settle(&behind, &of_behind).await;
    commit(&*outbox, &[event("A", "3")]).await;
    let done = relay.deliver(2).await;
    assert_eq!(texts(&done), ["2", "3"]);
    let free = eventually(PATIENCE, async || {
        commit(&*outbox, &[event("B", "x")]).await;
        relay.deliver(1).await;
        relay.blocked.is_empty().then_some(())
    });
    assert!(free.await.is_some(), "the key was never named as free");
}
