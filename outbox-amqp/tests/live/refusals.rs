//! What the server refuses after it was sent: returns, nacks, closed channels.

use std::time::{Duration, Instant};

use lapin::{
    ExchangeKind,
    options::{BasicGetOptions, QueuePurgeOptions},
};
use outbox_core::{ErrorKind, Outcome, Publisher, Scope, StoredEvent};
use outbox_testkit::eventually;
use tokio::time::sleep;

use crate::support::{
    Client, all_delivered, configured, failed, first_appearances, numbered, numbers, publisher,
    shared_url, unique,
};

/// Events with rising numbers, each for the topic at its place.
fn spread(topics: &[&str]) -> Vec<StoredEvent> {
    let numbered = |(number, topic): (usize, &&str)| numbered(topic, number);
    topics.iter().enumerate().map(numbered).collect()
}

/// Case confirmed-but-not-queued: the server confirms what no queue took. Returns are handed out
/// with other messages' confirmations; queues that confirm late mix them up.
#[tokio::test]
async fn confirmed_but_not_queued_unroutable_is_a_failure_of_its_topic() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let (slow, fast, nowhere) = (unique("slow"), unique("fast"), unique("nowhere"));
    client.queue(&slow, &[("x-queue-type", "quorum")]).await;
    client.queue(&fast, &[]).await;
    let publisher = publisher(&url);
    for round in 0..5 {
        let topics: Vec<&str> = (0..90)
            .map(|n| match n % 9 {
                4 => &*nowhere,
                n if n % 2 == 0 => &*slow,
                _ => &*fast,
            })
            .collect();
        let events = spread(&topics);
        let outcomes = publisher.publish(&events).await;
        for (topic, outcome) in topics.iter().zip(&outcomes) {
            if *topic == nowhere {
                let error = failed(outcome, ErrorKind::Unroutable, Scope::Topic);
                assert!(error.to_string().contains("312 NO_ROUTE"), "{error}");
            } else {
                assert!(outcome.is_delivered(), "{round}: {outcome:?}");
            }
        }
    }
    let of = |topic: &str| {
        let wanted = |n: &usize| match n % 9 {
            4 => false,
            m => (m % 2 == 0) == (topic == slow),
        };
        (0..90).filter(wanted).collect::<Vec<_>>().repeat(5)
    };
    for topic in [&slow, &fast] {
        let there = eventually(Duration::from_secs(10), async || {
            let there = client.numbers(topic).await;
            (there.len() == of(topic).len()).then_some(there)
        });
        assert_eq!(there.await.unwrap(), of(topic), "once each");
    }
    // A queue of that name makes it work.
    client.queue(&nowhere, &[]).await;
    all_delivered(&publisher.publish(&numbers(&nowhere, 0..5)).await);
    assert_eq!(client.numbers(&nowhere).await, [0, 1, 2, 3, 4]);
    for queue in [slow, fast, nowhere] {
        client.delete_queue(&queue).await;
    }
}

/// Case confirmed-but-not-queued: many messages at once of which none was queued, each of a topic of its
/// own, so that none is spared for another's sake.
#[tokio::test]
async fn confirmed_but_not_queued_many_returns_at_once() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let good = unique("good");
    client.queue(&good, &[]).await;
    let publisher = publisher(&url);
    for round in 0..5 {
        // The exchange is trusted first, so that the rest goes together.
        all_delivered(&publisher.publish(&numbers(&good, round..round + 1)).await);
        let topics: Vec<_> = (0..400).map(|n| unique(&format!("nowhere-{n}"))).collect();
        let topics: Vec<_> = topics.iter().map(String::as_str).collect();
        for outcome in publisher.publish(&spread(&topics)).await {
            failed(&outcome, ErrorKind::Unroutable, Scope::Topic);
        }
    }
    client.delete_queue(&good).await;
}

/// Case confirmed-but-not-queued: the binding goes away while it is used; what follows in the
/// topic is not stored before what was returned.
#[tokio::test]
async fn confirmed_but_not_queued_a_deleted_queue_is_noticed() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let queue = unique("deleted");
    client.queue(&queue, &[]).await;
    let publisher = publisher(&url);
    all_delivered(&publisher.publish(&numbers(&queue, 0..10)).await);
    client.delete_queue(&queue).await;
    for _ in 0..2 {
        for outcome in publisher.publish(&numbers(&queue, 10..20)).await {
            failed(&outcome, ErrorKind::Unroutable, Scope::Topic);
        }
    }
    client.queue(&queue, &[]).await;
    all_delivered(&publisher.publish(&numbers(&queue, 10..20)).await);
    assert_eq!(client.numbers(&queue).await, (10..20).collect::<Vec<_>>());
    client.delete_queue(&queue).await;
}

/// Case confirmed-but-not-queued: an exchange that is missing closes the channel. Only its own
/// events pay, and the others arrive once and in order.
#[tokio::test]
async fn a_missing_exchange_costs_only_its_own_events() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let (good, exchange, missing) = (unique("good"), unique("exchange"), unique("missing"));
    let other = unique("other");
    client.queue(&good, &[]).await;
    client.queue(&other, &[]).await;
    client.exchange(&exchange, ExchangeKind::Topic).await;
    client.bind(&other, &exchange, "orders.*").await;
    let (bound, a, b) = (
        format!("{exchange}/orders.new"),
        format!("{missing}/a"),
        format!("{missing}/b"),
    );
    let publisher = publisher(&url);
    let topics = [&*good, &a, &bound, &good, &b, &a, &bound, &good];
    for _ in 0..2 {
        let outcomes = publisher.publish(&spread(&topics)).await;
        for (topic, outcome) in topics.iter().zip(&outcomes) {
            if topic.starts_with(&missing) {
                let error = failed(outcome, ErrorKind::TopicNotFound, Scope::Topic);
                assert!(error.to_string().contains(&missing), "{error}");
            } else {
                assert!(outcome.is_delivered(), "{topic}: {outcome:?}");
            }
        }
    }
    assert_eq!(client.numbers(&good).await, [0, 3, 7, 0, 3, 7]);
    assert_eq!(client.numbers(&other).await, [2, 6, 2, 6]);
    client.exchange(&missing, ExchangeKind::Fanout).await;
    client.bind(&good, &missing, "").await;
    all_delivered(&publisher.publish(&spread(&topics)).await);
    client.delete_queue(&good).await;
    client.delete_queue(&other).await;
    client.delete_exchange(&exchange).await;
    client.delete_exchange(&missing).await;
}

/// Case amqp-publish-hang: the exchange is deleted while the publisher trusts it, with many events
/// in flight. The innocent go again in order; copies only of what was in flight.
#[tokio::test]
async fn amqp_publish_hang_a_deleted_exchange_does_not_drop_the_rest() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let (good, exchange) = (unique("good"), unique("exchange"));
    client.queue(&good, &[("x-queue-type", "quorum")]).await;
    client.exchange(&exchange, ExchangeKind::Fanout).await;
    client.bind(&good, &exchange, "").await;
    let doomed = format!("{exchange}/k");
    let publisher = publisher(&url);
    all_delivered(&publisher.publish(&spread(&[&good, &doomed])).await);
    client.delete_exchange(&exchange).await;
    client.delete_queue(&good).await;
    client.queue(&good, &[("x-queue-type", "quorum")]).await;

    let topics: Vec<&str> = (0..300)
        .map(|n| {
            if n == 100 || n == 200 {
                &*doomed
            } else {
                &*good
            }
        })
        .collect();
    let outcomes = publisher.publish(&spread(&topics)).await;
    for (number, outcome) in outcomes.iter().enumerate() {
        if topics[number] == doomed {
            let error = outcome.error().expect("it is not there");
            let seen = (error.kind(), error.failure_scope());
            assert_eq!(seen, (ErrorKind::TopicNotFound, Scope::Topic), "{error}");
        } else {
            assert!(outcome.is_delivered(), "{number}: {outcome:?}");
        }
    }
    // Its neighbours were in flight when the server named nobody, and so was it.
    assert!(matches!(outcomes[100], Outcome::Unknown(_)), "{outcomes:?}");
    let there = client.numbers(&good).await;
    let expected: Vec<_> = (0..300).filter(|n| topics[*n] == good).collect();
    assert_eq!(first_appearances(&there), expected);
    assert!(there.len() < 298 + 200, "{}", there.len());
    // From now on it goes alone: no neighbour is in doubt any more.
    let outcomes = publisher.publish(&spread(&topics)).await;
    failed(&outcomes[100], ErrorKind::TopicNotFound, Scope::Topic);
    failed(&outcomes[200], ErrorKind::TopicNotFound, Scope::Topic);
    assert_eq!(client.numbers(&good).await.len(), there.len() + 298);
    client.delete_queue(&good).await;
}

/// Case confirmed-but-not-queued: a full queue that rejects.
#[tokio::test]
async fn confirmed_but_not_queued_a_full_queue_is_a_failure() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let (full, good) = (unique("full"), unique("good"));
    let limits = [("x-max-length", "10"), ("x-overflow", "reject-publish")];
    client.queue(&full, &limits).await;
    client.queue(&good, &[]).await;
    let publisher = publisher(&url);
    let mut events = numbers(&full, 0..40);
    events.extend(numbers(&good, 0..5));
    let outcomes = publisher.publish(&events).await;
    all_delivered(&outcomes[40..]);
    let taken = outcomes[..40].iter().filter(|o| o.is_delivered()).count();
    assert!((10..30).contains(&taken), "{taken}");
    for outcome in outcomes[..40].iter().filter(|o| !o.is_delivered()) {
        failed(outcome, ErrorKind::OutOfSpace, Scope::Topic);
    }
    let stored = client.numbers(&full).await;
    assert_eq!(stored.len(), taken, "a nack means that it is not there");
    let channel = client.channel().await;
    channel
        .queue_purge(full.as_str().into(), QueuePurgeOptions::default())
        .await
        .unwrap();
    all_delivered(&publisher.publish(&events[taken..taken + 5]).await);
    client.delete_queue(&full).await;
    client.delete_queue(&good).await;
}

/// Case confirmed-but-not-queued: what follows a nack in its topic is not sent in that call, though
/// there may be room again by then.
#[tokio::test]
async fn confirmed_but_not_queued_nothing_follows_a_nack() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let full = unique("full");
    let limits = [("x-max-length", "5"), ("x-overflow", "reject-publish")];
    client.queue(&full, &limits).await;
    let channel = client.channel().await;
    let queue = full.clone();
    let consumer = tokio::spawn(async move {
        loop {
            let options = BasicGetOptions { no_ack: true };
            channel
                .basic_get(queue.as_str().into(), options)
                .await
                .unwrap();
            sleep(Duration::from_millis(5)).await;
        }
    });
    let publisher = configured(&url, |c| c.in_flight_events_max = 1);
    let outcomes = publisher.publish(&numbers(&full, 0..3_000)).await;
    consumer.abort();
    let taken = outcomes.iter().take_while(|o| o.is_delivered()).count();
    assert!((5..3_000).contains(&taken), "{taken}");
    for outcome in &outcomes[taken..] {
        failed(outcome, ErrorKind::OutOfSpace, Scope::Topic);
    }
    client.delete_queue(&full).await;
}

/// Case unsendable-hot-loop: what can't be sent is answered at once and holds nobody up.
#[tokio::test]
async fn unsendable_hot_loop_neighbours_are_not_held_up() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let good = unique("good");
    client.queue(&good, &[]).await;
    let publisher = configured(&url, |c| c.message_bytes_max = 1000);
    let nowhere = unique("nowhere");
    let started = Instant::now();
    for round in 0..10 {
        let mut events = numbers(&good, round * 100..(round + 1) * 100);
        events.insert(0, numbered(&nowhere, 0));
        events.insert(0, numbered(&good, 0));
        events[0].payload = Some(vec![b'1'; 1001].into());
        let outcomes = publisher.publish(&events).await;
        assert!(matches!(outcomes[0], Outcome::Rejected(_)));
        failed(&outcomes[1], ErrorKind::Unroutable, Scope::Topic);
        all_delivered(&outcomes[2..]);
    }
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(client.numbers(&good).await, (0..1000).collect::<Vec<_>>());
    client.delete_queue(&good).await;
}
