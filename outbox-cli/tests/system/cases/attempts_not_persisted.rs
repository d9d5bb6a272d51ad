//! An event that kills the process: counted before the work, isolated, dead in the end (I9).

use std::time::Duration;

use outbox_core::{RelayConfig, Route};

use crate::support::{Inside, Place, Running, child, copies, inside::faulty, numbered, patience};

const EVENTS: usize = 40;
const LEASE: Duration = Duration::from_millis(500);
/// The event that kills.
const CULPRIT: usize = 20;
const CRASHES: usize = 5;

/// A relay that aborts where it should encode the culprit.
async fn relay(urls: &str) {
    let (store, redis) = urls.split_once(' ').unwrap();
    let publisher = faulty(redis);
    publisher.on_event(move |event| {
        let payload = event.payload.as_deref().unwrap_or_default();
        let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
        if payload["number"] == CULPRIT {
            std::process::abort();
        }
        None
    });
    let queue = Place::queue_at(store, |config| config.lease = LEASE).await;
    let route = Route::new("default", publisher);
    let _working = Inside::start(queue, route, RelayConfig::default());
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_not_persisted() {
    if let Some(urls) = child::role() {
        return relay(&urls).await;
    }
    let place = Place::shared().await;
    let topic = place.topic("t");
    place.enqueue(&numbered(&topic, EVENTS)).await;
    let urls = format!("{} {}", place.url(), place.redis_url());
    let start = || {
        Running::start(child::again(
            module_path!(),
            "attempts_not_persisted",
            &urls,
        ))
    };

    let culprit = format!("key = 'k{CULPRIT}'");
    let since = std::time::Instant::now();
    let mut crashes = 0;
    let mut relay = start();
    while place
        .count(&format!("{culprit} AND status = 'failed'"))
        .await
        == 0
    {
        assert!(
            since.elapsed() < patience(),
            "not dead after {crashes} crashes"
        );
        if !relay.is_running() {
            let (code, _) = relay.ended().await;
            assert_eq!(code, None, "ended by a signal: {:?}", relay.log());
            crashes += 1;
            let counted = format!("{culprit} AND attempts = {crashes} AND status = 'processing'");
            assert_eq!(place.count(&counted).await, 1, "counted before the work");
            // The supervisor.
            relay = start();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(crashes, CRASHES);
    let dead = format!(
        "{culprit} AND status = 'failed' AND dead_reason = 'crashed' AND error LIKE '%crashed 5 times%'"
    );
    assert_eq!(place.count(&dead).await, 1);
    place.until_count("status = 'done'", EVENTS - 1).await;
    assert!(relay.is_running());
    let copies = copies(&place.entries(&topic).await);
    assert_eq!(copies.len(), EVENTS - 1, "all but the culprit");
}
