//! The broker is away for a while and writers go on: nothing is lost, nothing is blamed on events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_testkit::servers::Redis;

use crate::support::{Place, copies, numbered, until};

const OUTAGE: Duration = Duration::from_secs(20);
/// Events a second: 50 × this.
const EVENTS_PER_WRITE: usize = 4;
/// Writing every so often makes steady writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_down_for_20_s_burns_no_attempt() {
    let mut redis = Redis::start().unwrap();
    let place = Arc::new(Place::shared_with_redis(&redis.url()).await);
    let topic = place.topic("t");
    let relay = place
        .relay()
        .set("routes.default.breaker.cap", "2s")
        .started()
        .await;

    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (place, topic, stop) = (Arc::clone(&place), topic.clone(), Arc::clone(&stop));
        async move {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                place.enqueue(&numbered(&topic, EVENTS_PER_WRITE)).await;
                written += EVENTS_PER_WRITE;
                tokio::time::sleep(WRITE_INTERVAL).await;
            }
            written
        }
    });
    until("a flow", async || {
        place.count("status = 'done'").await > 100
    })
    .await;

    redis.kill().unwrap();
    relay.until_log("destination failed").await;
    relay.assert_rests(OUTAGE).await;
    let waiting = place.count("status <> 'done'").await;
    assert!(waiting > 500, "writers went on: {waiting}");
    assert_eq!(place.count("attempts > 1").await, 0, "no attempt is burnt");

    redis.restart().unwrap();
    relay.until_log("destination answers again").await;
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.unwrap();
    place.until_count("status = 'done'", written).await;
    relay.stop().await;
    assert_eq!(
        place
            .count("attempts <> 1 OR crashes <> 0 OR error IS NOT NULL")
            .await,
        0,
        "no attempt is burnt"
    );
    assert_eq!(copies(&place.entries(&topic).await).len(), written, "I2");
}
