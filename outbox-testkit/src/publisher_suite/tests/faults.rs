//! Behind the fault proxy: deadlines, recovery, honest outcomes, order through cuts.

use std::{collections::BTreeMap, time::Duration};

use outbox_core::{Outcome, Publisher, StoredEvent};
use tokio::time::{Instant, timeout};

use crate::{
    proxy::{Direction, FaultProxy},
    publisher_suite::{
        Received,
        bench::{
            PublisherBench, SHORT, SLACK, assert_delivered, assert_destination_failed, of_one_key,
            publish, publish_key, publish_until_delivered,
        },
    },
};

/// Publishes; fails when that takes longer than the deadline and some slack.
async fn in_time(publisher: &dyn Publisher, events: &[StoredEvent]) -> Vec<Outcome> {
    let answered = timeout(SHORT + SLACK, publish(publisher, events)).await;
    answered.expect("a publish ends within its deadline")
}

/// What an outcome promises is true: delivered events are there, failed and rejected ones are not.
fn assert_honest(events: &[StoredEvent], outcomes: &[Outcome], received: &[Received]) {
    for (event, outcome) in events.iter().zip(outcomes) {
        let there = received.iter().any(|message| message.id == event.id);
        match outcome {
            Outcome::Delivered(_) => assert!(there, "delivered and not there"),
            Outcome::Failed(error) | Outcome::Rejected(error) => {
                assert!(!there, "there in spite of {error}");
            }
            Outcome::Unknown(_) => {}
        }
    }
}

/// The cut shows in the outcomes, or it was repaired within the call without a copy.
fn assert_cut(
    bench: &PublisherBench,
    events: &[StoredEvent],
    outcomes: &[Outcome],
    received: &[Received],
) {
    if !outcomes.iter().all(Outcome::is_delivered) {
        return;
    }
    assert!(bench.harness().repairs_cuts(), "the cut was not noticed");
    for event in events {
        let copies = received.iter().filter(|message| message.id == event.id);
        assert_eq!(copies.count(), 1, "a repair makes no copies");
    }
}

/// A server that stops answering: the call ends at its deadline, in doubt, and the publisher
/// recovers by itself.
pub async fn a_stalled_server_ends_at_the_deadline(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(SHORT).await else {
        return;
    };
    let topic = bench.topic().await;
    assert_delivered(&publish_key(&*publisher, &of_one_key(&topic, 2)).await);
    for direction in [Direction::ToClient, Direction::ToServer] {
        proxy.stall(direction);
        let started = Instant::now();
        let outcomes = in_time(&*publisher, &of_one_key(&topic, 5)).await;
        assert_destination_failed(&outcomes);
        assert!(
            started.elapsed() >= SHORT / 2,
            "gave up after {:?}",
            started.elapsed()
        );
        proxy.pass();
        publish_until_delivered(&*publisher, &of_one_key(&topic, 5)).await;
    }
}

/// A server that is gone without a word, for old and new connections.
pub async fn a_black_hole_ends_at_the_deadline(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(SHORT).await else {
        return;
    };
    let topic = bench.topic().await;
    proxy.black_hole();
    let never_connected = bench
        .harness()
        .publisher(Some(proxy.address()), SHORT)
        .await;
    for publisher in [&publisher, &never_connected] {
        for _ in 0..2 {
            let outcomes = in_time(&**publisher, &of_one_key(&topic, 3)).await;
            assert_destination_failed(&outcomes);
        }
    }
    proxy.pass();
    proxy.cut();
    publish_until_delivered(&*publisher, &of_one_key(&topic, 3)).await;
    publish_until_delivered(&*never_connected, &of_one_key(&topic, 3)).await;
}

/// No server: the destination's fault, no event's; back again, it works without a restart.
pub async fn a_refused_connection_recovers_by_itself(bench: &PublisherBench) {
    let Some((mut proxy, publisher)) = bench.proxied(SHORT).await else {
        return;
    };
    let topic = bench.topic().await;
    let events = of_one_key(&topic, 5);
    proxy.refuse().await;
    for _ in 0..3 {
        assert_destination_failed(&in_time(&*publisher, &events).await);
    }
    let checked = timeout(SHORT + SLACK, publisher.check())
        .await
        .expect("a check ends");
    assert!(checked.is_err(), "a check must notice that nobody listens");
    proxy.accept().await.expect("the port is still free");
    publish_until_delivered(&*publisher, &events).await;
    publisher.check().await.expect("it is back");
    assert_eq!(bench.consume(&topic, 5).await.len(), 5);
}

/// Cut while the request is on its way: nothing is called delivered that is not there, and nothing
/// is called failed that is.
pub async fn a_cut_before_the_server_stored(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(SHORT).await else {
        return;
    };
    let topic = bench.topic().await;
    assert_delivered(&publish_key(&*publisher, &of_one_key(&topic, 1)).await);
    for bytes in [1, 100, 700] {
        proxy.cut_after(Direction::ToServer, bytes);
        let events = of_one_key(&topic, 20);
        let outcomes = in_time(&*publisher, &events).await;
        let received = bench.harness().consume(&topic).await;
        assert_honest(&events, &outcomes, &received);
        assert_cut(bench, &events, &outcomes, &received);
        proxy.pass();
        publish_until_delivered(&*publisher, &events).await;
    }
}

/// Cut while the answer is on its way: in doubt, never failed; the copies that follow are equal.
pub async fn a_cut_after_the_server_stored(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(SHORT).await else {
        return;
    };
    let topic = bench.topic().await;
    assert_delivered(&publish_key(&*publisher, &of_one_key(&topic, 1)).await);
    for bytes in [0, 1, 10] {
        proxy.cut_after(Direction::ToClient, bytes);
        let events = of_one_key(&topic, 20);
        let outcomes = in_time(&*publisher, &events).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let received = bench.consume(&topic, 1).await;
        assert_honest(&events, &outcomes, &received);
        assert_cut(bench, &events, &outcomes, &received);
        proxy.pass();
        publish_until_delivered(&*publisher, &events).await;
        let received = bench.consume(&topic, 20).await;
        for event in &events {
            let mut copies = received.iter().filter(|message| message.id == event.id);
            let first = copies.next().expect("it arrived");
            assert!(copies.all(|copy| copy == first), "copies differ");
        }
    }
}

/// Order of a key survives cuts at any place: the first sightings are in order, and copies come
/// only of events whose outcome was in doubt or that followed such.
pub async fn i5_order_survives_cuts(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(SHORT).await else {
        return;
    };
    let topic = bench.topic().await;
    let events = of_one_key(&topic, 300);
    for (round, part) in events.chunks(30).enumerate() {
        cut_somewhere(&proxy, round);
        publish_until_delivered(&*publisher, part).await;
        proxy.pass();
    }
    let received = bench.consume(&topic, 300).await;
    let mut first = BTreeMap::new();
    for (index, message) in received.iter().enumerate() {
        first.entry(message.id).or_insert(index);
    }
    let sightings: Vec<_> = events
        .iter()
        .map(|event| first.get(&event.id).copied())
        .collect();
    assert!(sightings.iter().all(Option::is_some), "an event is missing");
    assert!(
        sightings.is_sorted(),
        "a later event of the key was seen first"
    );
}

fn cut_somewhere(proxy: &FaultProxy, round: usize) {
    let bytes = u64::try_from(round).expect("few") * 331;
    match round % 3 {
        0 => proxy.cut_after(Direction::ToServer, bytes),
        1 => proxy.cut_after(Direction::ToClient, bytes / 10),
        _ => proxy.cut(),
    }
}

/// Slow is not broken: a latency well below the deadline delivers everything.
pub async fn a_slow_server_is_no_failure(bench: &PublisherBench) {
    let Some((proxy, publisher)) = bench.proxied(SHORT * 4).await else {
        return;
    };
    let topic = bench.topic().await;
    proxy.latency(Duration::from_millis(50));
    publish_until_delivered(&*publisher, &of_one_key(&topic, 1)).await;
    let outcomes = publish(&*publisher, &of_one_key(&topic, 1)).await;
    assert_delivered(&outcomes);
}

/// A working broker passes the check.
pub async fn a_check_of_a_working_broker_passes(bench: &PublisherBench) {
    let publisher = bench.publisher().await;
    publisher.check().await.expect("the broker works");
}
