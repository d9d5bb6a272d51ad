//! An event that can't be sent costs its attempts and nothing else.

use std::time::Duration;

use outbox_core::{Event, RelayConfig, RetryPolicy, Route, TopicPattern};
use outbox_redis::RedisConfig;

use crate::support::{
    Inside, Place, Running, child,
    inside::{faulty_with, refused},
    numbered,
};

/// Each pause is at least this long.
const BASE: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 4;

/// A relay whose broker refuses events of the type `Bad` for ever.
async fn relay(urls: &str) {
    child::log();
    let (store, redis) = urls.split_once(' ').unwrap();
    let config = RedisConfig {
        field_bytes_max: Some(1000),
        ..RedisConfig::new(redis)
    };
    let publisher = faulty_with(config);
    publisher.on_event(|event| (event.event_type == "Bad").then(refused));
    let policy = RetryPolicy {
        base: BASE,
        cap: BASE,
        attempts_max: ATTEMPTS_MAX,
        ..RetryPolicy::default()
    };
    let route = Route::new("default", publisher).policy(TopicPattern::All, policy);
    let queue = Place::queue_at(store, |_| ()).await;
    let _working = Inside::start(queue, route, RelayConfig::default());
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsendable_hot_loop() {
    if let Some(urls) = child::role() {
        return relay(&urls).await;
    }
    let place = Place::shared().await;
    let topic = place.topic("t");
    let bad = Event::new(&topic, "Bad").bytes("x").unwrap();
    let too_large = Event::new(&topic, "Large").bytes(vec![0; 1001]).unwrap();
    place.enqueue(&[bad.clone(), too_large]).await;
    place.enqueue(&numbered(&topic, 1000)).await;

    let urls = format!("{} {}", place.url(), place.redis_url());
    let relay = Running::start(child::again(module_path!(), "unsendable_hot_loop", &urls));
    place.until_count("status = 'done'", 1000).await;
    assert_eq!(
        place
            .count("event_type = 'Large' AND status = 'failed' AND attempts = 1")
            .await,
        1,
        "over the limit: dead after one attempt"
    );
    let busy = relay.processor_time();
    let since = std::time::Instant::now();
    let dead = format!(
        "event_type = 'Bad' AND status = 'failed' AND attempts = {ATTEMPTS_MAX}
            AND dead_reason = 'attempts_exhausted' AND error LIKE '%refuses it%'"
    );
    place.until_count(&dead, 1).await;
    let busy = relay.processor_time().saturating_sub(busy);
    let window = since.elapsed();
    assert!(
        busy < window / 2,
        "{busy:?} of work in {window:?}, while one event waits for its retries"
    );
    let order = place
        .count("event_type = 'Bad' AND processed_at > (SELECT max(processed_at) FROM outbox.queue WHERE status = 'done')")
        .await;
    assert_eq!(order, 1, "the good ones did not wait for the bad one");
    let pause = place
        .number("SELECT extract(epoch FROM processed_at - first_failed_at)::bigint FROM outbox.queue WHERE event_type = 'Bad'")
        .await;
    assert!(pause >= 3, "three pauses of at least a second: {pause} s");
    let id = bad.id().to_string();
    let lines = relay.log().iter().filter(|line| line.contains(&id)).count();
    assert_eq!(lines, 4, "one line for each attempt: {:#?}", relay.log());
    assert_eq!(place.entries(&topic).await.len(), 1000);
}
