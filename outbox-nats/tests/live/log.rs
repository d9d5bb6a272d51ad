//! What is logged: the risks that `check` finds, and never a secret or a payload (I15).

use std::time::Duration;

use async_nats::jetstream::stream::StorageType;
use outbox_core::{Event, Publisher};
use outbox_testkit::{eventually, log::Lines, servers::Nats};
use tracing::Level;

use crate::support::{all_delivered, configured, numbers, publisher, stored, stream_with};

#[tokio::test]
async fn check_warns_of_what_endangers_events() {
    let server = Nats::start().unwrap();
    let url = server.url();
    stream_with(&url, "GOOD", "good", |c| {
        c.duplicate_window = Duration::from_secs(300);
    })
    .await;
    stream_with(&url, "SHORT", "short", |c| {
        c.duplicate_window = Duration::from_secs(60);
    })
    .await;
    stream_with(&url, "MEMORY", "memory", |c| {
        c.duplicate_window = Duration::from_secs(300);
        c.storage = StorageType::Memory;
    })
    .await;
    let check = async |stream: &str, window: u64| {
        let publisher = configured(&url, |c| {
            c.streams = vec![stream.to_owned()];
            c.duplicate_window_min = Duration::from_secs(window);
        });
        let log = Lines::default();
        let _guard = log.follow_at(Level::WARN);
        publisher.check().await.unwrap();
        log.text()
    };
    assert_eq!(check("GOOD", 300).await, "");
    let text = check("SHORT", 300).await;
    assert!(
        text.contains("SHORT") && text.contains("window of 1m"),
        "{text}"
    );
    assert_eq!(check("SHORT", 60).await, "");
    let text = check("MEMORY", 300).await;
    assert!(text.contains("memory") && text.contains("lost"), "{text}");
    let text = check("MISSING", 300).await;
    assert!(
        text.contains("MISSING") && text.contains("topic_not_found"),
        "{text}"
    );
}

/// Who names no stream is told of those that events go to, once each.
#[tokio::test]
async fn a_stream_is_looked_at_when_it_takes_its_first_event() {
    let server = Nats::start().unwrap();
    stream_with(&server.url(), "SHORT", "t", |c| {
        c.duplicate_window = Duration::from_secs(60);
    })
    .await;
    let publisher = publisher(&server.url());
    let log = Lines::default();
    let _guard = log.follow_at(Level::WARN);
    for _ in 0..3 {
        all_delivered(&publisher.publish(&numbers("t", 0..10)).await);
    }
    let told = eventually(Duration::from_secs(10), async || {
        log.text().contains("window of 1m").then_some(())
    });
    assert!(told.await.is_some(), "{}", log.text());
    all_delivered(&publisher.publish(&numbers("t", 0..10)).await);
    assert_eq!(
        log.text().matches("window of 1m").count(),
        1,
        "{}",
        log.text()
    );
}

#[tokio::test]
async fn creds_in_log_at_no_level() {
    let mut server =
        Nats::start_with("authorization { user: u, password: \"p@ss:w/ord%21\" }").unwrap();
    let log = Lines::default();
    let _guard = log.follow_at(Level::TRACE);
    let event = Event::new("t", "T").bytes("se-cret payload").unwrap();
    let event = [stored(&event)];
    let (encoded, port) = ("p%40ss%3Aw%2Ford%2521", server.address().port());
    let right = publisher(&format!("nats://u:{encoded}@127.0.0.1:{port}"));
    let wrong = publisher(&format!("nats://u:wr0ng@127.0.0.1:{port}"));
    let token = publisher(&format!("nats://wr0ng-t0ken@127.0.0.1:{port}"));
    let mut shown = format!("{right:?} {wrong:?} {token:?}");
    for publisher in [&right, &wrong, &token] {
        let outcomes = publisher.publish(&event).await;
        let check = publisher.check().await;
        shown = format!("{shown} {outcomes:?} {check:?}");
    }
    server.kill().unwrap();
    for publisher in [&right, &wrong, &token] {
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
