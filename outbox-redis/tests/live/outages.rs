//! Kills, hangs, restarts, cancelled calls.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{ErrorKind, Outcome, Publisher, Scope};
use outbox_testkit::servers::Redis;

use crate::support::{
    all_delivered, configured, connection, entries, failed, first_appearances, numbers,
    publish_all, publisher,
};

fn unknown(outcome: &Outcome, kind: ErrorKind) {
    let Outcome::Unknown(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (error.kind(), error.failure_scope()),
        (kind, Scope::Destination),
        "{error}"
    );
}

#[tokio::test]
async fn nothing_was_sent_to_a_server_that_is_not_there() {
    let mut server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    server.kill().unwrap();
    for outcome in publisher.publish(&numbers("t", 0..3)).await {
        failed(&outcome, ErrorKind::Unavailable, Scope::Destination);
    }
    assert_eq!(
        publisher.check().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    server.restart().unwrap();
    publisher.check().await.unwrap();
    all_delivered(&publisher.publish(&numbers("t", 0..3)).await);
    assert_eq!(
        entries(&mut connection(&server.url()).await, "t")
            .await
            .len(),
        3
    );
}

/// An idle connection that died is noticed before an event is sent into it.
#[tokio::test]
async fn a_restart_while_idle_costs_nothing() {
    let mut server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    all_delivered(&publisher.publish(&numbers("t", 0..3)).await);
    server.kill().unwrap();
    server.restart().unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    all_delivered(&publisher.publish(&numbers("t", 3..6)).await);
    let stored = entries(&mut connection(&server.url()).await, "t").await;
    assert_eq!(first_appearances(&stored), [0, 1, 2, 3, 4, 5]);
    assert_eq!(stored.len(), 6);
}

/// With `appendfsync always` no acknowledged event is lost by SIGKILL, and order holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_i5_kills_in_the_middle_of_work_lose_nothing() {
    let mut server = Redis::start().unwrap();
    let publisher = Arc::new(publisher(&server.url()));
    let work = tokio::spawn({
        let publisher = Arc::clone(&publisher);
        async move { publish_all(&publisher, numbers("t", 0..60_000)).await }
    });
    let mut kills = 0;
    let mut length = 0;
    while !work.is_finished() && kills < 4 {
        // In the middle of work: the stream has grown since the last kill.
        let mut connection = connection(&server.url()).await;
        let grown: usize = redis::cmd("XLEN")
            .arg("t")
            .query_async(&mut connection)
            .await
            .unwrap();
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
    let stored = entries(&mut connection(&server.url()).await, "t").await;
    assert!(
        first_appearances(&stored).into_iter().eq(0..60_000),
        "lost or out of order"
    );
    let copies = stored.len() - 60_000;
    assert!(copies <= 200 * kills, "{copies} copies after {kills} kills");
}

/// A server that hangs: the deadline holds, what was sent is in doubt, the rest was not sent.
#[tokio::test]
async fn i2_a_hanging_server_does_not_hold_the_call() {
    let server = Redis::start().unwrap();
    let publisher = configured(&server.url(), |c| {
        c.publish_timeout = Duration::from_millis(600);
        c.connect_timeout = Duration::from_millis(200);
        c.pipeline_events_max = 2;
    });
    all_delivered(&publisher.publish(&numbers("t", 0..1)).await);
    server.pause().unwrap();
    let start = Instant::now();
    let outcomes = publisher.publish(&numbers("t", 1..6)).await;
    let took = start.elapsed();
    assert!((600..3_000).contains(&took.as_millis()), "{took:?}");
    unknown(&outcomes[0], ErrorKind::Timeout);
    unknown(&outcomes[1], ErrorKind::Timeout);
    for outcome in &outcomes[2..] {
        failed(outcome, ErrorKind::Timeout, Scope::Destination);
    }
    // A new connection is accepted by the system and not answered: nothing is sent.
    let start = Instant::now();
    for outcome in publisher.publish(&numbers("t", 1..6)).await {
        failed(&outcome, ErrorKind::Timeout, Scope::Destination);
    }
    assert!(start.elapsed() < Duration::from_secs(3));
    server.resume().unwrap();
    publish_all(&publisher, numbers("t", 1..6)).await;
    let stored = entries(&mut connection(&server.url()).await, "t").await;
    assert_eq!(first_appearances(&stored), [0, 1, 2, 3, 4, 5]);
}

/// A call that is dropped leaves the connection in order: later answers belong to later events.
#[tokio::test]
async fn cancelled_calls_mix_no_answers() {
    let server = Redis::start().unwrap();
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
        let stored = entries(&mut connection(&server.url()).await, "t").await;
        for (event, outcome) in events.iter().zip(&outcomes) {
            let Outcome::Delivered(receipt) = outcome else {
                panic!("{outcome:?}");
            };
            let entry = stored
                .iter()
                .find(|entry| Some(&entry.id) == receipt.position.as_ref());
            let id = entry.and_then(|entry| entry.text("event-id"));
            assert_eq!(id, Some(event.id.to_string().as_str()));
        }
    }
}

/// Case shutdown-drops-in-flight: `close` lets the calls under way finish, within its grace.
#[tokio::test]
async fn close_waits_for_answers_but_not_for_ever() {
    let server = Redis::start().unwrap();
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
    let mut connection = connection(&server.url()).await;
    assert_eq!(entries(&mut connection, "t").await.len(), 4);
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(clients.trim_end().lines().count(), 1, "{clients}");
}

#[tokio::test]
async fn close_ends_calls_that_get_no_answer() {
    let server = Redis::start().unwrap();
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
        unknown(outcome, ErrorKind::Unavailable);
    }
    server.resume().unwrap();
}

/// Each copy of an event is the same event (I4).
#[tokio::test]
async fn i4_copies_carry_the_same_id() {
    let server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    let events = numbers("t", 0..5);
    all_delivered(&publisher.publish(&events).await);
    all_delivered(&publisher.publish(&events).await);
    let stored = entries(&mut connection(&server.url()).await, "t").await;
    let ids: HashSet<_> = stored.iter().map(|entry| entry.text("event-id")).collect();
    assert_eq!((stored.len(), ids.len()), (10, 5));
}
