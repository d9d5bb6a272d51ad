//! What is logged: the risks that `check` finds, and never a secret or a payload (I15).

use outbox_core::{Event, Publisher};
use outbox_testkit::{log::Lines, servers::Redis};
use tracing::Level;

use crate::support::{configured, connection, publisher, run, stored};

/// Case redis-oom: a policy that may drop streams is told at the start.
#[tokio::test]
async fn redis_oom_check_warns_of_eviction() {
    let server = Redis::start().unwrap();
    let mut connection = connection(&server.url()).await;
    let check = async || {
        let log = Lines::default();
        let _guard = log.follow_at(Level::WARN);
        publisher(&server.url()).check().await.unwrap();
        log.text()
    };
    assert_eq!(check().await, "");
    run(&mut connection, "CONFIG SET maxmemory-policy allkeys-lru").await;
    let text = check().await;
    assert!(
        text.contains("evict") && text.contains("allkeys-lru"),
        "{text}"
    );
    run(&mut connection, "CONFIG SET maxmemory-policy volatile-lru").await;
    assert_eq!(check().await, "");
    run(&mut connection, "CONFIG SET appendonly no").await;
    let text = check().await;
    assert!(text.contains("appendonly is off"), "{text}");
}

/// Case redis-maxlen-trim: who trims is told what that costs.
#[tokio::test]
async fn redis_maxlen_trim_check_warns_of_loss() {
    let server = Redis::start().unwrap();
    let log = Lines::default();
    let _guard = log.follow_at(Level::WARN);
    publisher(&server.url()).check().await.unwrap();
    assert_eq!(log.text(), "");
    let trimming = configured(&server.url(), |c| c.stream_entries_max = Some(1_000));
    trimming.check().await.unwrap();
    let text = log.text();
    assert!(text.contains("lose") && text.contains("1000"), "{text}");
}

#[tokio::test]
async fn creds_in_log_at_no_level() {
    let mut server = Redis::start().unwrap();
    let log = Lines::default();
    let _guard = log.follow_at(Level::TRACE);
    let mut connection = connection(&server.url()).await;
    run(&mut connection, "CONFIG SET requirepass p@ss:w/ord%21").await;
    let event = Event::new("t", "T")
        .header("h", "se-cret header")
        .bytes("se-cret")
        .unwrap();
    let event = [stored(&event)];
    let (encoded, port) = ("p%40ss%3Aw%2Ford%2521", server.address().port());
    let right = publisher(&format!("redis://:{encoded}@127.0.0.1:{port}"));
    let wrong = publisher(&format!("redis://:wr0ng@127.0.0.1:{port}"));
    let mut shown = format!("{right:?} {wrong:?}");
    for publisher in [&right, &wrong] {
        let outcomes = publisher.publish(&event).await;
        let check = publisher.check().await;
        shown = format!("{shown} {outcomes:?} {check:?}");
    }
    server.kill().unwrap();
    for publisher in [&right, &wrong] {
        let outcomes = publisher.publish(&event).await;
        shown = format!("{shown} {outcomes:?}");
    }
    let text = log.text() + &shown;
    assert!(
        text.contains("connected") && text.contains(&port.to_string()),
        "{text}"
    );
    for secret in ["p@ss", "p%40ss", "ord%21", "wr0ng", "se-cret"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}
