//! A send that hangs holds no lock and no transaction, and keeps nobody waiting (I7, I11).

use std::time::Duration;

use crate::support::{Place, TransactionWatch, copies, numbered, proxy, scaled, until};

const TRANSACTION_MAX: Duration = Duration::from_secs(1);

async fn a_hanging_broker_for_one_topic(isolation: &str) {
    let events = scaled(500, 5000);
    let place = Place::shared().await;
    let database = place.database();
    place
        .sql(&format!(
            "ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'"
        ))
        .await;
    let (hung, flows) = (place.topic("t1"), place.topic("t2"));
    // It accepts connections and never answers.
    let (broker, url) = proxy(place.redis_url()).await;
    let settings = place
        .relay()
        .set("store.lease", "1s")
        .set("routes.default.topics", &flows)
        .set("routes.hung.topics", &hung)
        .set("routes.hung.publisher.url", url);
    let relays = [settings.started().await, settings.started().await];
    broker.black_hole();
    let watch = TransactionWatch::start(place.url());

    place.enqueue(&numbered(&hung, 100)).await;
    let in_flight = format!("topic = '{hung}' AND status = 'processing'");
    until("events in flight", async || {
        place.count(&in_flight).await > 0
    })
    .await;
    place.enqueue(&numbered(&flows, events)).await;
    place
        .until_count(&format!("topic = '{flows}' AND status = 'done'"), events)
        .await;
    assert!(place.count(&in_flight).await > 0, "still hanging");
    // An operator's own transaction on such a row does not wait for the relay's.
    place
        .sql(&format!(
            "SET lock_timeout = '2s'; UPDATE outbox.queue SET headers = headers WHERE {in_flight}"
        ))
        .await;
    // Past several leases of the hanging batch.
    tokio::time::sleep(scaled(Duration::from_secs(3), Duration::from_secs(60))).await;
    let seen = watch.seen().await;
    assert!(seen.looks > 10, "{seen:?}");
    assert!(seen.oldest < TRANSACTION_MAX, "{seen:?}");
    assert_eq!(
        place
            .count(&format!("topic = '{hung}' AND crashes > 0"))
            .await,
        0,
        "leases of a hanging send are renewed, nobody overtakes"
    );

    broker.pass();
    broker.cut();
    place.until_count("status = 'done'", events + 100).await;
    for relay in relays {
        let log = relay.stop().await;
        let conflicts = log.iter().filter(|line| line.contains("conflict"));
        assert_eq!(conflicts.count(), 0, "{log:#?}");
    }
    for (topic, count) in [(&hung, 100), (&flows, events)] {
        assert_eq!(copies(&place.entries(topic).await).len(), count);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_lock_during_send() {
    a_hanging_broker_for_one_topic("read committed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_lock_during_send_by_serializable_default() {
    a_hanging_broker_for_one_topic("serializable").await;
}
