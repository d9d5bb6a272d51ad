//! A server that answers late or no more: how much waits for it, and how calls end. By the fault proxy
//! before the shared server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope};
use outbox_testkit::{
    eventually,
    proxy::{Direction, FaultProxy},
};
use tokio::time::sleep;

use crate::support::{
    Client, address, all_delivered, configured, failed, numbers, publish_all, shared_url, unique,
    unknown,
};

/// A queue with one message, and a publisher that has sent it through a proxy.
struct Place {
    client: Client,
    queue: String,
    proxy: FaultProxy,
    publisher: Arc<AmqpPublisher>,
}

impl Place {
    async fn make(set: impl FnOnce(&mut AmqpConfig)) -> Self {
        let client = Client::connect(&shared_url()).await;
        let queue = unique("waiting");
        client.queue(&queue, &[]).await;
        let proxy = FaultProxy::start(address()).await.unwrap();
        let publisher = configured(&format!("amqp://{}/%2f", proxy.address()), set);
        all_delivered(&publisher.publish(&numbers(&queue, 0..1)).await);
        Self {
            client,
            queue,
            proxy,
            publisher: Arc::new(publisher),
        }
    }

    /// A call that the server has taken and that hears nothing of it.
    async fn unanswered_call(&self) -> tokio::task::JoinHandle<Vec<Outcome>> {
        self.proxy.stall(Direction::ToClient);
        let (publisher, events) = (Arc::clone(&self.publisher), numbers(&self.queue, 1..4));
        let call = tokio::spawn(async move { publisher.publish(&events).await });
        let stored = eventually(Duration::from_secs(10), async || {
            (self.client.count(&self.queue).await == Some(4)).then_some(())
        });
        stored.await.expect("it was sent");
        call
    }

    async fn end(self) {
        self.client.delete_queue(&self.queue).await;
    }
}

/// Only what is in flight is in doubt at the deadline, and that is bounded, by events and by bytes.
#[tokio::test]
async fn i8_what_waits_for_its_confirmation_is_bounded() {
    for (events_max, bytes_max, expected) in [(4, 4 << 20, 4), (500, 2_000, 3)] {
        let place = Place::make(|c| {
            c.publish_timeout = Duration::from_millis(700);
            c.in_flight_events_max = events_max;
            c.in_flight_bytes_max = bytes_max;
        })
        .await;
        place.proxy.stall(Direction::ToClient);
        let outcomes = place.publisher.publish(&numbers(&place.queue, 1..11)).await;
        for outcome in &outcomes[..expected] {
            unknown(outcome, ErrorKind::Timeout);
        }
        for outcome in &outcomes[expected..] {
            failed(outcome, ErrorKind::Timeout, Scope::Destination);
        }
        assert_eq!(place.client.count(&place.queue).await, Some(1 + expected));
        place.end().await;
    }
}

/// A connection whose server gave no sign of life is asked for one before anything is sent on it: after
/// an unanswered call, and after a rest.
#[tokio::test]
async fn i2_a_silent_connection_puts_nothing_in_doubt_twice() {
    let place = Place::make(|c| {
        c.publish_timeout = Duration::from_millis(400);
        c.connect_timeout = Duration::from_millis(150);
    })
    .await;
    let events = numbers(&place.queue, 1..3);
    // Calls at the same time leave several channels behind, which need no answer to be used.
    let warm = numbers(&place.queue, 0..1);
    let calls = (0..4).map(|_| place.publisher.publish(&warm));
    for outcomes in join_all(calls).await {
        all_delivered(&outcomes);
    }
    place.proxy.stall(Direction::ToClient);
    for outcome in place.publisher.publish(&events).await {
        unknown(&outcome, ErrorKind::Timeout);
    }
    for outcome in place.publisher.publish(&events).await {
        failed(&outcome, ErrorKind::Timeout, Scope::Destination);
    }
    place.proxy.pass();
    publish_all(&place.publisher, &events).await;
    // The rest after which a connection is asked first.
    sleep(Duration::from_millis(1_100)).await;
    place.proxy.stall(Direction::ToClient);
    for outcome in place.publisher.publish(&events).await {
        failed(&outcome, ErrorKind::Timeout, Scope::Destination);
    }
    place.end().await;
}

/// Case shutdown-drops-in-flight: `close` lets the calls under way finish, within its grace, and
/// nothing is sent afterwards.
#[tokio::test]
async fn shutdown_drops_in_flight_only_after_its_grace() {
    let place = Place::make(|_| ()).await;
    let under_way = place.unanswered_call().await;
    let answer = async {
        sleep(Duration::from_millis(200)).await;
        place.proxy.pass();
    };
    tokio::join!(place.publisher.close(Duration::from_secs(10)), answer);
    all_delivered(&under_way.await.unwrap());
    for outcome in place.publisher.publish(&numbers(&place.queue, 4..6)).await {
        failed(&outcome, ErrorKind::Unavailable, Scope::Destination);
    }
    assert_eq!(place.client.count(&place.queue).await, Some(4));
    place.end().await;
}

/// Case shutdown-drops-in-flight: a call that gets no answer ends with the grace, in doubt.
#[tokio::test]
async fn shutdown_drops_in_flight_leaves_doubt_without_answers() {
    let place = Place::make(|_| ()).await;
    let under_way = place.unanswered_call().await;
    let started = Instant::now();
    place.publisher.close(Duration::from_millis(200)).await;
    for outcome in under_way.await.unwrap() {
        unknown(&outcome, ErrorKind::Unavailable);
    }
    assert!(started.elapsed() < Duration::from_secs(3));
    place.end().await;
}

/// Calls that are dropped while their messages are not written yet cost the others on the connection
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_cost_their_neighbours_nothing() {
    let place = Place::make(|_| ()).await;
    let dropped = unique("dropped");
    place.client.queue(&dropped, &[]).await;
    let mut large = numbers(&dropped, 0..300);
    for event in &mut large {
        event.payload = Some(vec![b'1'; 20_000].into());
    }
    for round in 0..20 {
        let (publisher, events) = (Arc::clone(&place.publisher), large.clone());
        let call = tokio::spawn(async move { publisher.publish(&events).await });
        let beside = numbers(&place.queue, 0..200);
        let (outcomes, ()) = tokio::join!(place.publisher.publish(&beside), async {
            sleep(Duration::from_millis(round)).await;
            call.abort();
        });
        all_delivered(&outcomes);
    }
    place.client.delete_queue(&dropped).await;
    place.end().await;
}
