//! Read back by another implementation: RabbitMQ's own HTTP interface, as `rabbitmqadmin` uses it.

use std::{net::SocketAddr, time::Duration};

use outbox_core::{Event, Publisher};
use outbox_testkit::{eventually, servers::RabbitMq};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{Client, all_delivered, publisher, stored};

/// One request of the user guest; the answer with its head.
async fn post(address: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub(crate) async fn consumers_of_other_make_read_it(server: &RabbitMq, address: SocketAddr) {
    let client = Client::connect(&server.url()).await;
    client.queue("interop", &[]).await;
    let event = Event::new("interop", "OrderPlaced")
        .aggregate("order", "4711")
        .version(3)
        .header("tenant", "größe")
        .header("tenant", "second")
        .json(&"paid")
        .unwrap();
    let event = stored(&event);
    let publisher = publisher(&server.url());
    all_delivered(&publisher.publish(std::slice::from_ref(&event)).await);
    let ask = r#"{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
    // The interface starts behind the listener of the protocol.
    let answer = eventually(Duration::from_secs(30), async || {
        let answer = post(address, "/api/queues/%2f/interop/get", ask)
            .await
            .ok()?;
        answer.contains("200 OK").then_some(answer)
    });
    let answer = answer.await.expect("the HTTP interface answers");
    let id = format!("\"message_id\":\"{}\"", event.id);
    let time = format!("\"timestamp\":{}", event.created_at.unix_timestamp());
    for part in [
        &*id,
        &time,
        "\"type\":\"OrderPlaced\"",
        "\"content_type\":\"application/json\"",
        "\"delivery_mode\":2",
        "\"outbox-key\":\"4711\"",
        "\"aggregate-type\":\"order\"",
        "\"aggregate-id\":\"4711\"",
        "\"event-version\":\"3\"",
        "\"tenant.2\":\"second\"",
        "\"payload\":\"\\\"paid\\\"\"",
    ] {
        assert!(answer.contains(part), "{part} is not in {answer}");
    }
    let tenant = ["\"tenant\":\"größe\"", "\"tenant\":\"gr\\u00f6\\u00dfe\""];
    assert!(tenant.iter().any(|t| answer.contains(t)), "{answer}");
}
