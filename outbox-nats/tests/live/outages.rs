//! Kills, hangs, restarts, cuts, cancelled calls.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{Directive, ErrorKind, Outcome, Publisher, Scope};
use outbox_testkit::{
    eventually,
    proxy::{Direction, FaultProxy},
    servers::Nats,
};

use crate::support::{
    all_delivered, configured, count, failed, first_appearances, messages, numbers, publish_all,
    publisher, stream, unknown,
};

async fn start() -> Nats {
    let server = Nats::start().unwrap();
    stream(&server.url(), "S", "t").await;
    server
}

/// Case nats-ok-not-sent: with the server down nothing is called delivered, and it is there later.
#[tokio::test(flavor = "current_thread")]
async fn nats_ok_not_sent_to_a_server_that_is_not_there() {
    let mut server = start().await;
    let publisher = publisher(&server.url());
    server.kill().unwrap();
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        failed(&outcome, ErrorKind::Unavailable, Scope::Destination);
    }
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.restart().unwrap();
    publisher.check().await.unwrap();
    all_delivered(&publisher.publish(&numbers("t", 0..3)).await);
    // Nothing hangs on in the publisher: what it called delivered is stored.
    drop(publisher);
    assert_eq!(messages(&server.url(), "S", "t").await.len(), 3);
}

#[tokio::test]
async fn a_restart_while_idle_costs_nothing() {
    let mut server = start().await;
    let publisher = publisher(&server.url());
    all_delivered(&publisher.publish(&numbers("t", 0..3)).await);
    server.kill().unwrap();
    server.restart().unwrap();
    // The end of a connection is noticed by itself, at some time.
    tokio::time::sleep(Duration::from_millis(200)).await;
    all_delivered(&publisher.publish(&numbers("t", 3..6)).await);
    let stored = messages(&server.url(), "S", "t").await;
    assert_eq!(first_appearances(&stored), [0, 1, 2, 3, 4, 5]);
    assert_eq!(stored.len(), 6);
}

/// Restarts under load: nothing acknowledged is lost, order holds, and copies are dropped by the
/// stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_i5_kills_in_the_middle_of_work_lose_nothing() {
    const EVENTS: usize = 40_000;
    let mut server = start().await;
    let publisher = Arc::new(publisher(&server.url()));
    let work = tokio::spawn({
        let publisher = Arc::clone(&publisher);
        async move { publish_all(&publisher, &numbers("t", 0..EVENTS)).await }
    });
    let mut kills = 0;
    let mut length = 0;
    while !work.is_finished() && kills < 4 {
        // In the middle of work: the stream has grown since the last kill.
        let grown = count(&server.url(), "S").await;
        if grown < length + 1_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        length = grown;
        server.kill().unwrap();
        server.restart().unwrap();
        kills += 1;
    }
    let failures = work.await.unwrap();
    assert!(failures > 0, "no kill met the work");
    let stored = messages(&server.url(), "S", "t").await;
    assert!(
        first_appearances(&stored).into_iter().eq(0..EVENTS),
        "lost or out of order"
    );
    let copies = stored.len() - EVENTS;
    assert!(copies <= 200 * kills, "{copies} copies after {kills} kills");
}

/// The driver must not send on a second connection what waited while the first broke.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_nothing_passes_what_was_lost_with_a_connection() {
    let server = start().await;
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let publisher = configured(&format!("nats://{}", proxy.address()), |c| {
        c.in_flight_events_max = 5_000;
        c.publish_timeout = Duration::from_secs(5);
    });
    let mut next = 0;
    for round in 0..20 {
        let events = numbers("t", next..next + 1_000);
        proxy.cut_after(Direction::ToServer, 20_000 + 9_000 * round);
        let outcomes = publisher.publish(&events).await;
        assert!(
            outcomes.iter().any(|outcome| !outcome.is_delivered()),
            "no cut"
        );
        proxy.pass();
        // What the driver would send late has time to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let stored = first_appearances(&messages(&server.url(), "S", "t").await);
        assert!(
            stored.iter().copied().eq(0..stored.len()),
            "round {round}: {stored:?}"
        );
        publish_all(&publisher, &events).await;
        next += 1_000;
    }
    let stored = messages(&server.url(), "S", "t").await;
    assert!(first_appearances(&stored).into_iter().eq(0..next));
    assert_eq!(stored.len(), next, "the stream dropped the copies");
}

/// Several calls of one publisher that all break off: none of them hangs, and order holds for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_end_with_their_connection() {
    let mut server = start().await;
    stream(&server.url(), "M", "m.*").await;
    let publisher = Arc::new(publisher(&server.url()));
    let work: Vec<_> = (0..4)
        .map(|lane| {
            let publisher = Arc::clone(&publisher);
            tokio::spawn(async move {
                publish_all(&publisher, &numbers(&format!("m.{lane}"), 0..5_000)).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.kill().unwrap();
    server.restart().unwrap();
    for (lane, work) in work.into_iter().enumerate() {
        work.await.unwrap();
        let stored = messages(&server.url(), "M", &format!("m.{lane}")).await;
        assert!(
            first_appearances(&stored).into_iter().eq(0..5_000),
            "lane {lane}"
        );
    }
}

/// A server that hangs: the deadline holds, what was sent is in doubt, the rest was not sent.
#[tokio::test]
async fn i2_a_hanging_server_does_not_hold_the_call() {
    let server = start().await;
    let publisher = configured(&server.url(), |c| {
        c.publish_timeout = Duration::from_millis(600);
        c.connect_timeout = Duration::from_millis(200);
        c.in_flight_events_max = 2;
    });
    all_delivered(&publisher.publish(&numbers("t", 0..1)).await);
    server.pause().unwrap();
    let events = numbers("t", 1..6);
    let start = Instant::now();
    let outcomes = publisher.publish(&events).await;
    let took = start.elapsed();
    assert!((600..3_000).contains(&took.as_millis()), "{took:?}");
    unknown(&outcomes[0], ErrorKind::Timeout, Scope::Destination);
    unknown(&outcomes[1], ErrorKind::Timeout, Scope::Destination);
    for outcome in &outcomes[2..] {
        failed(outcome, ErrorKind::Timeout, Scope::Destination);
    }
    // A new connection is accepted by the system and not answered: nothing is sent.
    let start = Instant::now();
    for outcome in publisher.publish(&events).await {
        failed(&outcome, ErrorKind::Timeout, Scope::Destination);
    }
    assert!(start.elapsed() < Duration::from_secs(3));
    server.resume().unwrap();
    publish_all(&publisher, &events).await;
    let stored = messages(&server.url(), "S", "t").await;
    assert_eq!(first_appearances(&stored), [0, 1, 2, 3, 4, 5]);
    assert_eq!(stored.len(), 6, "what was in doubt is known again");
}

/// A server that takes connections and never says a word.
#[tokio::test]
async fn a_server_that_never_greets_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let publisher = configured(&format!("nats://{}", silent.local_addr().unwrap()), |c| {
        c.publish_timeout = Duration::from_secs(5);
        c.connect_timeout = Duration::from_millis(300);
    });
    let start = Instant::now();
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        failed(&outcome, ErrorKind::Timeout, Scope::Destination);
    }
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}

/// The second of two servers takes over; the first is tried again when that one leaves.
#[tokio::test]
async fn another_server_of_the_list_takes_over() {
    let (mut first, mut second) = (start().await, start().await);
    let publisher = publisher(&format!("{},{}", first.url(), second.url()));
    all_delivered(&publisher.publish(&numbers("t", 0..2)).await);
    first.kill().unwrap();
    publish_all(&publisher, &numbers("t", 2..4)).await;
    assert_eq!(count(&second.url(), "S").await, 2);
    first.restart().unwrap();
    second.kill().unwrap();
    publish_all(&publisher, &numbers("t", 4..6)).await;
    assert_eq!(count(&first.url(), "S").await, 4);
}

/// A server that is about to stop tells so, and is left before it cuts.
#[tokio::test]
async fn a_server_in_lame_duck_mode_is_left() {
    // Longer than this test waits, so that it is not the cut that moves it.
    let first = Nats::start_with("lame_duck_grace_period: 60s").unwrap();
    stream(&first.url(), "S", "t").await;
    let second = start().await;
    let publisher = publisher(&format!("{},{}", first.url(), second.url()));
    all_delivered(&publisher.publish(&numbers("t", 0..2)).await);
    first.leave().unwrap();
    let mut next = 2;
    let moved = eventually(Duration::from_secs(20), async || {
        // Its JetStream ends a moment before it says that it leaves.
        let outcomes = publisher.publish(&numbers("t", next..next + 1)).await;
        next += usize::from(outcomes[0].is_delivered());
        (count(&second.url(), "S").await > 0).then_some(())
    });
    assert!(moved.await.is_some(), "it stays with the first");
}

/// Lame duck mode of the only server there is: what it took before it left is stored, what it did not
/// take costs no attempt, and all goes on when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_a_lame_duck_loses_nothing_and_burns_no_attempt() {
    const EVENTS: usize = 20_000;
    let mut server = Nats::start_with("lame_duck_grace_period: 1s").unwrap();
    stream(&server.url(), "S", "t").await;
    let publisher = publisher(&server.url());
    let events = numbers("t", 0..EVENTS);
    let mut next = 0;
    let mut failures = 0;
    // It ends its JetStream, closes its clients after the grace period, and ends.
    let gone = eventually(Duration::from_secs(30), async || {
        let end = EVENTS.min(next + 50);
        let outcomes = publisher.publish(&events[next..end]).await;
        for outcome in outcomes.iter().filter(|o| !o.is_delivered()) {
            let then = outbox_core::classify(outcome);
            let waits = matches!(then, Directive::PauseTopic | Directive::PauseDestination);
            assert!(waits, "{then:?} for {outcome:?}");
            failures += 1;
        }
        if next == 0 {
            server.leave().unwrap();
        }
        next += outcomes.iter().take_while(|o| o.is_delivered()).count();
        let log = std::fs::read_to_string(server.log()).unwrap();
        log.contains("Server Exiting").then_some(())
    });
    gone.await.expect("the server ends");
    assert!(
        next > 0 && next < EVENTS && failures > 0,
        "{next}, {failures}"
    );
    server.restart().unwrap();
    publish_all(&publisher, &events[next..next + 500]).await;
    let stored = messages(&server.url(), "S", "t").await;
    assert!(
        first_appearances(&stored).into_iter().eq(0..next + 500),
        "lost or out of order"
    );
    assert_eq!(stored.len(), next + 500, "the stream dropped the copies");
}

/// A call that is dropped leaves the connection in order: later answers belong to later events.
#[tokio::test]
async fn cancelled_calls_mix_no_answers() {
    let server = start().await;
    stream(&server.url(), "D", "dropped").await;
    let publisher = Arc::new(publisher(&server.url()));
    all_delivered(&publisher.publish(&numbers("t", 0..1)).await);
    for round in 0..10 {
        server.pause().unwrap();
        let call = tokio::spawn({
            let publisher = Arc::clone(&publisher);
            async move { publisher.publish(&numbers("dropped", 0..700)).await }
        });
        tokio::time::sleep(Duration::from_millis(5 * round)).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        server.resume().unwrap();
        let events = numbers("t", 0..20);
        let outcomes = publisher.publish(&events).await;
        let stored = messages(&server.url(), "S", "t").await;
        for (event, outcome) in events.iter().zip(&outcomes) {
            let Outcome::Delivered(receipt) = outcome else {
                panic!("{outcome:?}");
            };
            let place =
                |m: &&crate::support::Stored| Some(format!("S:{}", m.sequence)) == receipt.position;
            let id = stored
                .iter()
                .find(place)
                .and_then(|message| message.text("event-id"));
            assert_eq!(id, Some(event.id.to_string()));
        }
    }
}

/// Case shutdown-drops-in-flight: `close` lets the calls under way finish, within its grace.
#[tokio::test]
async fn shutdown_drops_in_flight_only_after_its_grace() {
    let server = start().await;
    let publisher = Arc::new(publisher(&server.url()));
    all_delivered(&publisher.publish(&numbers("t", 0..1)).await);
    let call = |range| {
        let publisher = Arc::clone(&publisher);
        tokio::spawn(async move { publisher.publish(&numbers("t", range)).await })
    };
    server.pause().unwrap();
    let under_way = call(1..4);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let resume = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.resume().unwrap();
    };
    tokio::join!(publisher.close(Duration::from_secs(10)), resume);
    all_delivered(&under_way.await.unwrap());
    for outcome in publisher.publish(&numbers("t", 4..6)).await {
        failed(&outcome, ErrorKind::Unavailable, Scope::Destination);
    }
    assert_eq!(count(&server.url(), "S").await, 4);
}

#[tokio::test]
async fn close_ends_calls_that_get_no_answer() {
    let server = start().await;
    let publisher = Arc::new(publisher(&server.url()));
    all_delivered(&publisher.publish(&numbers("t", 0..1)).await);
    server.pause().unwrap();
    let under_way = tokio::spawn({
        let publisher = Arc::clone(&publisher);
        async move { publisher.publish(&numbers("t", 1..4)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    publisher.close(Duration::from_millis(200)).await;
    let outcomes = under_way.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(3));
    for outcome in &outcomes {
        unknown(outcome, ErrorKind::Unavailable, Scope::Destination);
    }
    server.resume().unwrap();
}
