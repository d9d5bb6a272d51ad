//! Quorum queues and streams as they are, and declaring what is missing.

use outbox_amqp::QueueType;
use outbox_core::{ErrorKind, Publisher, Scope};

use crate::support::{
    Client, all_delivered, arguments, configured, failed, numbers, shared_url, unique,
};

#[tokio::test]
async fn every_type_of_queue_can_be_declared_and_keeps_order() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    for kind in [QueueType::Quorum, QueueType::Classic, QueueType::Stream] {
        let (exchange, queue) = (unique("declared"), unique("declared"));
        let topic = format!("{exchange}/orders.new");
        // Twice: what is there already is left as it is.
        for from in [0, 300] {
            let publisher = configured(&url, |c| {
                c.declare_exchange = Some(exchange.clone());
                c.declare_queue = Some(queue.clone());
                c.declare_queue_type = kind;
                c.declare_binding_key = "orders.*".to_owned();
            });
            publisher.check().await.unwrap();
            all_delivered(&publisher.publish(&numbers(&topic, from..from + 300)).await);
            let outside = format!("{exchange}/users.new");
            let outcomes = publisher.publish(&numbers(&outside, 0..2)).await;
            failed(&outcomes[0], ErrorKind::Unroutable, Scope::Topic);
        }
        // Declared as durable, or this would not fit what is there.
        client.exchange(&exchange, lapin::ExchangeKind::Topic).await;
        let type_of = |kind| match kind {
            QueueType::Quorum => "quorum",
            QueueType::Classic => "classic",
            QueueType::Stream => "stream",
        };
        client
            .queue(&queue, &[("x-queue-type", type_of(kind))])
            .await;
        let there = if kind == QueueType::Stream {
            let from_start = arguments(&[("x-stream-offset", "first")]);
            let messages = client.read(&queue, 600, from_start).await;
            messages
                .iter()
                .map(super::support::Message::number)
                .collect()
        } else {
            client.numbers(&queue).await
        };
        assert_eq!(there, (0..600).collect::<Vec<_>>(), "{kind:?}");
        client.delete_queue(&queue).await;
        client.delete_exchange(&exchange).await;
    }
}

#[tokio::test]
async fn a_declaration_that_does_not_fit_names_its_setting() {
    let url = shared_url();
    let client = Client::connect(&url).await;
    let queue = unique("fits-not");
    client.queue(&queue, &[("x-queue-type", "classic")]).await;
    let publisher = configured(&url, |c| c.declare_queue = Some(queue.clone()));
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("declare_queue"), "{error}");
    for outcome in publisher.publish(&numbers(&queue, 0..2)).await {
        failed(&outcome, ErrorKind::Configuration, Scope::Destination);
    }
    client.delete_queue(&queue).await;
}
