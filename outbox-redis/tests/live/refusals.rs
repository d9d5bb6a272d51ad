//! What the server refuses.

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher, Scope};
use outbox_testkit::servers::Redis;

use crate::support::{
    all_delivered, configured, connection, entries, failed, first_appearances, numbers,
    publish_all, publisher, run,
};

/// Case redis-oom: a full server refuses whole parts, so that nothing passes what was refused.
#[tokio::test]
async fn redis_oom_refuses_whole_parts_in_order() {
    let server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    let mut connection = connection(&server.url()).await;
    run(&mut connection, "CONFIG SET maxmemory 5mb").await;
    let mut next = 0;
    let refused = loop {
        assert!(next < 200_000, "the server is never full");
        let outcomes = publisher.publish(&numbers("t", next..next + 1_700)).await;
        let delivered = outcomes.iter().take_while(|o| o.is_delivered()).count();
        next += delivered;
        if let Some(first) = outcomes.get(delivered) {
            failed(first, ErrorKind::OutOfSpace, Scope::Destination);
            // What stands behind the refused part was not sent.
            for outcome in &outcomes[delivered..] {
                failed(outcome, ErrorKind::OutOfSpace, Scope::Destination);
            }
            break outcomes.len() - delivered;
        }
    };
    assert!(refused > 0);
    assert_eq!(entries(&mut connection, "t").await.len(), next);
    run(&mut connection, "CONFIG SET maxmemory 0").await;
    all_delivered(&publisher.publish(&numbers("t", next..next + 1_000)).await);
    let stored = entries(&mut connection, "t").await;
    assert_eq!(
        stored.len(),
        next + 1_000,
        "no copies: failed is not unknown"
    );
    assert!(first_appearances(&stored).into_iter().eq(0..next + 1_000));
}

/// Case published-but-mark-failed, the second half: one of ten is refused, nine are delivered once.
#[tokio::test]
async fn i7_a_key_of_another_type_fails_alone() {
    for transactional in [true, false] {
        let server = Redis::start().unwrap();
        let mut connection = connection(&server.url()).await;
        run(&mut connection, "SET taken x").await;
        let publisher = configured(&server.url(), |c| c.transactional = transactional);
        let mut events = numbers("t", 0..10);
        events[4].topic = "taken".to_owned();
        let outcomes = publisher.publish(&events).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            if index == 4 {
                failed(outcome, ErrorKind::WrongTopicType, Scope::Topic);
            } else {
                assert!(outcome.is_delivered(), "{outcome:?}");
            }
        }
        let stored = entries(&mut connection, "t").await;
        assert_eq!(first_appearances(&stored), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(stored.len(), 9);
    }
}

#[tokio::test]
async fn a_server_that_loads_is_waited_for() {
    let mut server = Redis::start_with(&["--appendonly", "no"]).unwrap();
    let publisher = publisher(&server.url());
    let mut filling = connection(&server.url()).await;
    for key in 0..100 {
        run(&mut filling, &format!("SET key{key} {}", "x".repeat(2_000))).await;
    }
    run(&mut filling, "SAVE").await;
    server.kill().unwrap();
    // 100 keys at 20 ms each.
    let slowly = [
        "--appendonly",
        "no",
        "--rdbcompression",
        "no",
        "--key-load-delay",
        "20000",
    ];
    let often = ["--loading-process-events-interval-bytes", "1024"];
    let arguments = [&slowly[..], &often[..]].concat();
    server.restart_unready(&arguments).unwrap();
    let start = Instant::now();
    let mut loading = 0;
    loop {
        let outcomes = publisher.publish(&numbers("t", 0..3)).await;
        if outcomes[0].is_delivered() {
            break;
        }
        for outcome in &outcomes {
            let error = failed(outcome, ErrorKind::Unavailable, Scope::Destination);
            loading += usize::from(error.to_string().contains("LOADING"));
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(loading > 0, "the server was never seen loading");
    let stored = entries(&mut connection(&server.url()).await, "t").await;
    assert_eq!(stored.len(), 3, "what was refused did not land");
}

/// The last id of a stream is used up: only that stream is at fault.
#[tokio::test]
async fn a_used_up_stream_is_its_own_fault() {
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    let last = u64::MAX;
    run(&mut connection, &format!("XADD full {last}-{last} a b")).await;
    let publisher = publisher(&server.url());
    let mut events = numbers("t", 0..3);
    events[1].topic = "full".to_owned();
    let outcomes = publisher.publish(&events).await;
    failed(&outcomes[1], ErrorKind::Refused, Scope::Topic);
    assert!(outcomes[0].is_delivered() && outcomes[2].is_delivered());
}

#[tokio::test]
async fn redis_oom_for_a_while_costs_no_event() {
    let server = Redis::start().unwrap();
    let publisher = publisher(&server.url());
    let mut connection = connection(&server.url()).await;
    all_delivered(&publisher.publish(&numbers("t", 0..10)).await);
    run(&mut connection, "CONFIG SET maxmemory 1").await;
    let raise = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        run(&mut connection, "CONFIG SET maxmemory 0").await;
    };
    let (failures, ()) = tokio::join!(publish_all(&publisher, numbers("t", 10..3_000)), raise);
    assert!(failures > 0);
    let stored = entries(&mut connection, "t").await;
    assert_eq!(stored.len(), 3_000);
    assert!(first_appearances(&stored).into_iter().eq(0..3_000));
}
