//! Kills, hangs, restarts, closed connections: steps on one private server, which takes 10 seconds
//! for each start.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{ErrorKind, Event, Outcome, Publisher, Scope, StoredEvent};
use outbox_testkit::{
    proxy::{Direction, FaultProxy},
    servers::RabbitMq,
};

use crate::support::{
    Client, all_delivered, configured, failed, first_appearances, numbers, publish_all, publisher,
    stored, unknown,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn amqp_publish_hang_through_outages_of_the_server() {
    let mut server = RabbitMq::start().unwrap();
    let client = Client::connect(&server.url()).await;
    for queue in ["hangs", "closed", "alone", "load"] {
        client.queue(queue, &[]).await;
    }
    drop(client);
    a_hanging_server_costs_the_deadline_and_no_more(&server).await;
    connections_closed_by_an_operator(&server).await;
    a_connection_closed_behind_one_event_is_not_its_fault(&server).await;
    let running = a_kill_and_a_restart_under_load(&mut server).await;
    nothing_was_sent_to_a_server_that_is_not_there(&mut server, running).await;
}

/// SIGSTOP: in doubt at the deadline; SIGCONT: it goes on, in order.
async fn a_hanging_server_costs_the_deadline_and_no_more(server: &RabbitMq) {
    let publisher = configured(&server.url(), |c| {
        c.publish_timeout = Duration::from_millis(1_500);
    });
    all_delivered(&publisher.publish(&numbers("hangs", 0..10)).await);
    server.pause().unwrap();
    let started = Instant::now();
    let outcomes = publisher.publish(&numbers("hangs", 10..20)).await;
    for outcome in &outcomes {
        unknown(outcome, ErrorKind::Timeout);
    }
    // Found out before anything is sent.
    for outcome in publisher.publish(&numbers("hangs", 10..20)).await {
        failed(&outcome, ErrorKind::Timeout, Scope::Destination);
    }
    assert!(started.elapsed() < Duration::from_secs(6));
    server.resume().unwrap();
    publish_all(&publisher, &numbers("hangs", 10..200)).await;
    let there = Client::connect(&server.url()).await.numbers("hangs").await;
    assert_eq!(first_appearances(&there), (0..200).collect::<Vec<_>>());
    assert!(there.len() <= 200 + 10, "{}", there.len());
}

/// Case amqp-publish-hang: closed at any moment, every call ends and the next ones work.
async fn connections_closed_by_an_operator(server: &RabbitMq) {
    let publisher = publisher(&server.url());
    let events = numbers("closed", 0..20_000);
    let mut closings = 0;
    let mut copies = 0;
    std::thread::scope(|threads| {
        let closing = threads.spawn(|| {
            for _ in 0..3 {
                let closed = server.ctl(&["close_all_connections", "a test"]);
                closed.unwrap();
                closings += 1;
            }
        });
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            runtime.block_on(async {
                let mut rounds = 0;
                while !closing.is_finished() || rounds == 0 {
                    copies += publish_all(&publisher, &events[rounds * 1000..][..1000]).await;
                    rounds = (rounds + 1) % 20;
                }
            });
        });
    });
    assert_eq!(closings, 3);
    all_delivered(&publisher.publish(&events[..10]).await);
    println!("{copies} sent again after connections were closed");
}

/// The server's words about a connection say nothing about the one event that is in flight.
async fn a_connection_closed_behind_one_event_is_not_its_fault(server: &RabbitMq) {
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let publisher = Arc::new(publisher(&format!("amqp://{}", proxy.address())));
    all_delivered(&publisher.publish(&numbers("alone", 0..1)).await);
    proxy.stall(Direction::ToServer);
    let call = {
        let publisher = Arc::clone(&publisher);
        tokio::spawn(async move { publisher.publish(&numbers("alone", 1..2)).await })
    };
    let closing = || server.ctl(&["close_all_connections", "a test"]);
    tokio::task::block_in_place(closing).unwrap();
    let outcomes = call.await.unwrap();
    let error = unknown(&outcomes[0], ErrorKind::ConnectionLost);
    assert!(error.to_string().contains("320"), "{error}");
    proxy.pass();
    publish_all(&publisher, &numbers("alone", 1..2)).await;
}

/// Nothing is lost, each key keeps its order, and copies are only of what was in flight.
async fn a_kill_and_a_restart_under_load(server: &mut RabbitMq) -> Arc<outbox_amqp::AmqpPublisher> {
    const KEYS: usize = 5;
    const EVENTS: usize = 40_000;
    let publisher = Arc::new(publisher(&server.url()));
    let event = |n: usize| {
        let event = Event::new("load", "Counted").key(format!("k{}", n % KEYS));
        stored(&event.bytes(n.to_string()).unwrap())
    };
    let events: Vec<StoredEvent> = (0..EVENTS).map(event).collect();
    all_delivered(&publisher.publish(&events[..200]).await);
    let load = {
        let (publisher, events) = (Arc::clone(&publisher), events.clone());
        tokio::spawn(async move { publish_all(&publisher, &events[200..]).await })
    };
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!load.is_finished(), "the load is over before the kill");
    tokio::task::block_in_place(|| {
        server.kill().unwrap();
        server.restart().unwrap();
    });
    let again = load.await.unwrap();
    println!("{again} sent again after the kill");
    assert!(again > 0, "nothing was in flight at the kill");
    let client = Client::connect(&server.url()).await;
    let there = client.numbers("load").await;
    let mut of_key: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in first_appearances(&there) {
        of_key.entry(number % KEYS).or_default().push(number);
    }
    for (key, numbers) in &of_key {
        let expected = (*key..EVENTS).step_by(KEYS).collect::<Vec<_>>();
        assert_eq!(*numbers, expected, "key {key}");
    }
    assert!(
        there.len() - EVENTS <= again,
        "{} copies",
        there.len() - EVENTS
    );
    publisher
}

async fn nothing_was_sent_to_a_server_that_is_not_there(
    server: &mut RabbitMq,
    used: Arc<outbox_amqp::AmqpPublisher>,
) {
    used.check().await.unwrap();
    tokio::task::block_in_place(|| server.kill().unwrap());
    let fresh = publisher(&server.url());
    for publisher in [&*used, &fresh] {
        let started = Instant::now();
        for _ in 0..3 {
            for outcome in publisher.publish(&numbers("load", 0..3)).await {
                assert!(!matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
                let error = outcome.error().unwrap();
                assert_eq!(error.failure_scope(), Scope::Destination, "{error}");
            }
        }
        let outcomes = publisher.publish(&numbers("load", 0..3)).await;
        failed(&outcomes[2], ErrorKind::Unavailable, Scope::Destination);
        let error = publisher.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // Attempts to connect keep a distance.
        assert!(started.elapsed() > Duration::from_millis(300));
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
