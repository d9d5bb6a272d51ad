//! Case retry-overtakes-key, by the program on a SQLite file: the topic of an event can't take it for a
//! while, and what follows in its key waits.

use crate::support::{File, Place, until};

/// When the server took each entry, in milliseconds, and its payload; in the stream's order.
async fn taken(redis: &mut redis::aio::MultiplexedConnection, topic: &str) -> Vec<(u64, String)> {
    let entries: Vec<(String, Vec<(String, String)>)> = redis::cmd("XRANGE")
        .arg(topic)
        .arg("-")
        .arg("+")
        .query_async(redis)
        .await
        .unwrap();
    let entry = |(id, fields): (String, Vec<(String, String)>)| {
        let millis = id.split('-').next().unwrap().parse().unwrap();
        let payload = fields.into_iter().find(|(name, _)| name == "payload");
        (millis, payload.unwrap().1)
    };
    entries.into_iter().map(entry).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_overtakes_key() {
    let place = Place::shared().await;
    let (blocked, free) = (place.topic("blocked"), place.topic("free"));
    let mut redis = place.redis().await;
    redis::cmd("SET")
        .arg(&blocked)
        .arg("no stream")
        .exec_async(&mut redis)
        .await
        .unwrap();
    let settings = place.relay().set("routes.default.breaker.cap", "1s");
    // Events of one key that are sent in one go pass one that the server refuses: the counted
    // exception to I5.
    let file = File::new(settings.set("routes.default.strict_order", "true"));
    file.enqueue(&blocked, "k", "1");
    file.enqueue(&free, "k", "2");
    file.enqueue(&free, "other", "3");
    let relay = file.settings.started().await;
    relay.until_log("topic failed").await;
    file.until_counted("held", 1).await;
    // Later ones wait too, and other keys do not.
    file.enqueue(&free, "k", "4");
    file.enqueue(&free, "other", "5");
    file.until_counted("held", 2).await;
    until("the other key", async || place.length(&free).await == 2).await;
    let payloads = |entries: &[(u64, String)]| -> Vec<String> {
        entries.iter().map(|(_, payload)| payload.clone()).collect()
    };
    assert_eq!(payloads(&taken(&mut redis, &free).await), ["3", "5"]);

    redis::cmd("DEL")
        .arg(&blocked)
        .exec_async(&mut redis)
        .await
        .unwrap();
    until("all of them", async || place.length(&free).await == 4).await;
    relay.stop().await;
    let (first, others) = (
        taken(&mut redis, &blocked).await,
        taken(&mut redis, &free).await,
    );
    assert_eq!(payloads(&first), ["1"]);
    assert_eq!(payloads(&others), ["3", "5", "2", "4"]);
    assert!(
        first[0].0 <= others[2].0,
        "it was overtaken: {first:?}, {others:?}"
    );
    file.until_counted("blocked_keys", 0).await;
}
