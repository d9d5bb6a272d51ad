//! Case key-blocked-forever, by the program on a SQLite file: what becomes of the events behind a dead
//! one of their key, under each policy.

use crate::support::{File, Place, until};

/// One event that the publisher never takes, four behind it in its key, and one of another key.
async fn run(on_dead: &str) -> (Place, String, File, crate::support::Running) {
    let place = Place::shared().await;
    let topic = place.topic("t");
    let settings = place
        .relay()
        .set("routes.default.retry.on_dead", on_dead)
        .set("routes.default.publisher.field_bytes_max", "100")
        .set("relay.inspect_interval", "100ms");
    let file = File::new(settings);
    file.enqueue(&topic, "k", &format!("\"{}\"", "x".repeat(101)));
    for payload in ["2", "3", "4", "5"] {
        file.enqueue(&topic, "k", payload);
    }
    file.enqueue(&topic, "other", "6");
    let relay = file.settings.started().await;
    file.until_counted("dead", 1).await;
    (place, topic, file, relay)
}

async fn payloads_of_k(place: &Place, topic: &str) -> Vec<String> {
    let entries = place.entries(topic).await;
    let of_k = entries.iter().filter(|e| e.text("key") == Some("k"));
    of_k.map(|entry| entry.text("payload").unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_blocked_forever_hold() {
    let (place, topic, file, relay) = run("hold-key").await;
    until("the other key", async || place.length(&topic).await == 1).await;
    file.until_counted("held", 4).await;
    until("the metric", async || {
        relay.metric("outbox_blocked_keys").await >= 1.0
    })
    .await;
    assert!(payloads_of_k(&place, &topic).await.is_empty());

    file.settings.run(&["dead", "discard", "--all", "--yes"]);
    until("those behind it", async || place.length(&topic).await == 5).await;
    assert_eq!(payloads_of_k(&place, &topic).await, ["2", "3", "4", "5"]);
    until("the metric", async || {
        relay.metric("outbox_blocked_keys").await == 0.0
    })
    .await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_blocked_forever_skip() {
    let (place, topic, file, relay) = run("skip").await;
    until("all the others", async || place.length(&topic).await == 5).await;
    assert_eq!(payloads_of_k(&place, &topic).await, ["2", "3", "4", "5"]);
    file.until_counted("blocked_keys", 0).await;
    file.until_counted("dead", 1).await;
    relay.stop().await;
}
