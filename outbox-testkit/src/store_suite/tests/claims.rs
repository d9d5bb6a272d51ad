//! What a claim may return.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use outbox_core::{ClaimLimit, Event, TopicPattern, TopicSet, Verdict};
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;

use crate::store_suite::{
    Outbox,
    bench::{LONG, PATIENCE, StoreBench, Worker, all, commit, event, events, limit, texts},
};

/// Never more events than asked for, and `more` says that some are left.
pub async fn i8_claim_respects_event_limit(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(10)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let mut seen = 0;
    while seen < 9 {
        let batch = worker.claim_some(3).await;
        assert!(
            batch.events.len() <= 3,
            "{} events for a limit of 3",
            batch.events.len()
        );
        seen += batch.events.len();
        assert!(batch.more || seen >= 9, "more events were waiting");
        worker.settle_all(&batch, &Verdict::Done).await;
    }
    assert_eq!(seen + worker.drain_until(10 - seen).await.len(), 10);
}

/// A batch ends before the event that would go over the byte limit.
pub async fn i8_claim_respects_byte_limit(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let big: Vec<Event> = (0..6)
        .map(|n| event(&format!("k{n}"), &"x".repeat(10_000)))
        .collect();
    commit(&*outbox, &big).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let bytes = ClaimLimit {
        events: 100,
        bytes: 25_000,
    };
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 6 {
        let batch = worker.lane().claim(bytes).await.expect("claim");
        let size: usize = batch
            .events
            .iter()
            .map(outbox_core::StoredEvent::byte_len)
            .sum();
        assert!(
            size <= 25_000 || batch.events.len() == 1,
            "{size} bytes for a limit of 25,000"
        );
        assert!(!batch.events.is_empty(), "events are left after {sizes:?}");
        sizes.push(batch.events.len());
        worker.settle_all(&batch, &Verdict::Done).await;
    }
    assert_eq!(sizes[0], 2, "a batch is filled up to the limit");
}

/// An event over the whole byte limit is returned alone and blocks nobody.
pub async fn i8_first_event_is_returned_whatever_its_size(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let giant = event("giant", &"x".repeat(500_000));
    commit(&*outbox, &[giant, event("small", "small")]).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let tiny = ClaimLimit {
        events: 100,
        bytes: 1_000,
    };
    let mut lengths = Vec::new();
    while lengths.len() < 2 {
        let batch = worker.lane().claim(tiny).await.expect("claim");
        assert_eq!(batch.events.len(), 1, "after {lengths:?}");
        lengths.push(
            batch.events[0]
                .payload
                .as_ref()
                .map_or(0, bytes::Bytes::len),
        );
        worker.settle_all(&batch, &Verdict::Done).await;
    }
    assert_eq!(lengths, [500_000, 5]);
}

/// While a batch is in flight nobody else gets its events, and the same lane goes on behind it.
pub async fn a_batch_in_flight_is_in_no_other_claim(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(4)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let first = worker.claim_some(2).await;
    let second = worker.claim_some(2).await;
    worker.assert_drained().await;
    let mut seen = [texts(&first.events), texts(&second.events)].concat();
    seen.sort();
    assert_eq!(seen, ["payload-0", "payload-1", "payload-2", "payload-3"]);
    assert_ne!(first.token, second.token);
    worker.settle_all(&first, &Verdict::Done).await;
    worker.settle_all(&second, &Verdict::Done).await;
    worker.assert_drained().await;
}

/// Case poller-takes-in-flight: eight relays and a writer at once; each event is handed out once.
pub async fn poller_takes_in_flight(bench: &StoreBench) {
    const EVENTS: usize = 400;
    let outbox = bench.fresh(LONG, 8).await;
    let seen: Arc<Mutex<BTreeMap<Uuid, usize>>> = Arc::default();
    let deadline = Instant::now() + PATIENCE;
    let mut relays = JoinSet::new();
    for n in 0..8 {
        let (outbox, seen) = (Arc::clone(&outbox), Arc::clone(&seen));
        relays.spawn(async move {
            let mut worker = Worker::idle(&*outbox, &format!("relay-{n}")).await;
            while seen.lock().expect("no panic under it").len() < EVENTS
                && Instant::now() < deadline
            {
                visit_all_lanes(&mut worker, &seen).await;
                tokio::task::yield_now().await;
            }
        });
    }
    let mut expected = Vec::new();
    for chunk in events(EVENTS).chunks(20) {
        expected.extend(chunk.iter().map(Event::id));
        commit(&*outbox, chunk).await;
    }
    while let Some(ended) = relays.join_next().await {
        ended.expect("a relay panicked");
    }
    let seen = seen.lock().expect("no panic under it");
    expected.sort();
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), expected);
    let doubled = seen.values().filter(|times| **times > 1).count();
    assert_eq!(doubled, 0, "events were handed out twice");
}

async fn visit_all_lanes(worker: &mut Worker, seen: &Mutex<BTreeMap<Uuid, usize>>) {
    for surrendered in worker.acquire().await {
        if let Some(index) = worker
            .lanes
            .iter()
            .position(|lane| *lane.id() == surrendered)
        {
            worker.lanes.remove(index).release().await.expect("release");
        }
    }
    for lane in &worker.lanes {
        let batch = lane.claim(limit(7)).await.expect("claim");
        if batch.is_empty() {
            continue;
        }
        for event in &batch.events {
            *seen
                .lock()
                .expect("no panic under it")
                .entry(event.id)
                .or_default() += 1;
        }
        let settled = lane.settle(batch.token, &all(&batch, &Verdict::Done)).await;
        assert_eq!(settled.expect("settle").lost, 0);
    }
}

/// A settle and the next claim of a lane may run at the same time.
pub async fn claim_and_settle_overlap(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(200)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let mut seen = Vec::new();
    let mut batch = worker.claim_some(10).await;
    while !batch.is_empty() {
        let settlements = all(&batch, &Verdict::Done);
        let (settled, next) = futures::join!(worker.settle(&batch, &settlements), worker.claim(10));
        assert_eq!(settled.lost, 0);
        seen.extend(texts(&batch.events));
        batch = next;
    }
    seen.extend(texts(&worker.drain().await));
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 200);
}

/// A route gets events of its own topics only.
pub async fn a_route_takes_its_topics_only(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let on = |topic: &str| {
        Event::new(topic, "T")
            .key(topic)
            .bytes(topic.to_owned())
            .expect("valid")
    };
    let topics = [
        "orders",
        "orders.eu",
        "order",
        "stock",
        "it_em%",
        "itXemY",
        "exact",
    ];
    commit(&*outbox, &topics.map(on)).await;
    let patterns =
        ["orders*", "it_em%*", "exact"].map(|text| text.parse::<TopicPattern>().expect("valid"));
    let set = TopicSet::new(patterns).expect("not empty");
    let mut worker = Worker::of_topics(&*outbox, "relay", set).await;
    worker.get_lane().await;
    let mut seen = texts(&worker.drain_until(4).await);
    seen.sort();
    assert_eq!(seen, ["exact", "it_em%", "orders", "orders.eu"]);
    worker.assert_drained().await;
}

/// Two relays never hold one lane, and each gets one.
pub async fn lanes_spread_over_workers(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 4).await;
    let mut first = Worker::start(&*outbox, "relay-1").await;
    let mut second = Worker::idle(&*outbox, "relay-2").await;
    let deadline = Instant::now() + PATIENCE;
    while second.lanes.is_empty() && Instant::now() < deadline {
        give_back(&mut first).await;
        give_back(&mut second).await;
    }
    assert!(!first.lanes.is_empty() && !second.lanes.is_empty());
    let ids = |worker: &Worker| {
        worker
            .lanes
            .iter()
            .map(|lane| lane.id().clone())
            .collect::<Vec<_>>()
    };
    for id in ids(&first) {
        assert!(!ids(&second).contains(&id), "lane {id} is held twice");
    }
    drain_both(&*outbox, &first, &second).await;
}

async fn give_back(worker: &mut Worker) {
    for id in worker.acquire().await {
        if let Some(index) = worker.lanes.iter().position(|lane| *lane.id() == id) {
            worker.lanes.remove(index).release().await.expect("release");
        }
    }
}

async fn drain_both(outbox: &dyn Outbox, first: &Worker, second: &Worker) {
    commit(outbox, &events(40)).await;
    let mut seen = 0;
    for lane in first.lanes.iter().chain(&second.lanes) {
        let batch = lane.claim(limit(100)).await.expect("claim");
        seen += batch.events.len();
        lane.settle(batch.token, &all(&batch, &Verdict::Done))
            .await
            .expect("settle");
    }
    assert_eq!(seen, 40, "lanes that nobody holds, or events in no lane");
}
