//! Kafka's own programs read what was published.

use outbox_core::{Event, Publisher as _};
use outbox_testkit::servers::Kafka;

use crate::support::{all_delivered, publisher, shared, stored, topic};

#[tokio::test(flavor = "multi_thread")]
async fn the_console_consumer_shows_key_headers_and_value() {
    let brokers = shared();
    let topic = topic(&brokers, "console").await;
    let order = Event::new(&topic, "OrderPlaced")
        .aggregate("order", "4711")
        .header("tenant", "größe")
        .header("tenant", "second")
        .json(&serde_json::json!({"total": 12}))
        .unwrap();
    let gone = Event::new(&topic, "OrderGone").key("").tombstone().unwrap();
    let events = [stored(&order), stored(&gone)];
    all_delivered(&publisher(&brokers).publish(&events).await);
    let lines = tokio::task::spawn_blocking(move || {
        let class = "org.apache.kafka.tools.consumer.ConsoleConsumer";
        let mut arguments = vec!["--topic", &topic];
        arguments.extend([
            "--from-beginning",
            "--max-messages",
            "2",
            "--timeout-ms",
            "30000",
        ]);
        for property in [
            "print.key=true",
            "print.headers=true",
            "null.literal=NULL",
            "key.separator=|",
            "headers.separator=;",
        ] {
            arguments.extend(["--formatter-property", property]);
        }
        Kafka::ask(&brokers, class, &arguments).unwrap()
    });
    let text = lines.await.unwrap();
    let lines: Vec<_> = text.lines().collect();
    let [order, gone] = lines[..] else {
        panic!("{text}");
    };
    let id = events[0].id;
    assert!(
        order.starts_with(&format!("event-id:{id};event-type:OrderPlaced;")),
        "{order}"
    );
    assert!(
        order.contains("aggregate-type:order;aggregate-id:4711;"),
        "{order}"
    );
    assert!(order.contains("content-type:application/json;"), "{order}");
    assert!(
        order.ends_with("tenant:größe;tenant:second|4711|{\"total\":12}"),
        "{order}"
    );
    assert!(gone.contains("event-type:OrderGone;"), "{gone}");
    assert!(gone.ends_with("||NULL"), "{gone}");
}
