//! From the command line to a queue of RabbitMQ.

use lapin::{
    Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicGetOptions, QueueDeleteOptions},
};

use crate::support::{Place, Running, amqp_url, lines};

#[test]
fn an_event_goes_from_the_command_line_to_a_queue() {
    let place = Place::migrated();
    let topic = place.topic("orders");
    let with_queue = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        for (key, value) in [
            ("URL", &*amqp_url()),
            ("DECLARE_QUEUE", &topic),
            ("DECLARE_QUEUE_TYPE", "classic"),
            ("IN_FLIGHT_EVENTS_MAX", "7"),
        ] {
            command.env(format!("OUTBOX__ROUTES__DEFAULT__PUBLISHER__{key}"), value);
        }
        command
    };
    let checked = with_queue(&["relay", "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success() && said.contains("ok     destination"),
        "{said}"
    );
    let ids = place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, 20).as_bytes())
        .success();
    let relay = Running::start(with_queue(&["relay", "--http", "127.0.0.1:0"]));
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        20,
    );
    assert_eq!(relay.get("/readyz").0, 200);
    let log = relay.stop();
    assert!(log.contains("publisher=\"amqp\""), "{log}");

    let mut expected: Vec<_> = ids.lines().map(str::to_owned).collect();
    let mut found = take(&topic);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn settings_of_other_publishers_are_refused_by_name() {
    let place = Place::migrated();
    for (key, value, url) in [
        ("TRANSACTIONAL", "true", "amqp://h"),
        ("DECLARE_QUEUE", "q", "redis://h"),
    ] {
        let mut command = place.command(&["relay", "--check"]);
        command
            .env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", url)
            .env(format!("OUTBOX__ROUTES__DEFAULT__PUBLISHER__{key}"), value);
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        let key = key.to_lowercase();
        assert!(
            said.contains(&format!("publisher.{key} has no meaning")),
            "{said}"
        );
    }
}

/// The ids of the messages in the queue, which is deleted.
fn take(queue: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&amqp_url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let mut ids = vec![];
        loop {
            let next = channel.basic_get(queue.into(), BasicGetOptions::default());
            let Some(next) = next.await.unwrap() else {
                break;
            };
            let id = next.delivery.properties.message_id().as_ref().unwrap();
            ids.push(id.to_string());
            next.delivery.ack(BasicAckOptions::default()).await.unwrap();
        }
        let deleted = channel.queue_delete(queue.into(), QueueDeleteOptions::default());
        deleted.await.unwrap();
        ids
    })
}
