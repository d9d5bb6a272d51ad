//! The publisher `kafka` in a relay.

use outbox_testkit::servers::Kafka;

use crate::support::{Place, Running, arg, kafka_url, lines};

const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";

/// Runs one of Kafka's programs on the shared broker.
fn tool(class: &str, arguments: &[&str]) -> String {
    let url = kafka_url();
    let broker = url.trim_start_matches("kafka://");
    Kafka::ask(broker, class, arguments).unwrap()
}

#[test]
fn a_relay_publishes_to_kafka() {
    const EVENTS: usize = 500;
    let place = Place::migrated();
    let topic = place.topic("kafka");
    let new = ["--create", "--topic", &topic, "--partitions", "1"];
    tool("org.apache.kafka.tools.TopicCommand", &new);
    place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, EVENTS).as_bytes())
        .success();
    let text = format!(
        "[routes.default.publisher]\nkind = \"kafka\"\nurl = \"{}\"\ncompression = \"lz4\"\n\
         properties = \"\"\"\nclient.id = relay\nlinger.ms = 2\n\"\"\"\n",
        kafka_url()
    );
    let file = place.file("kafka.toml", text);
    let settings = ["relay", "--config", arg(&file)];
    place
        .outbox(&[&settings[..], &["--check"]].concat())
        .success();
    let relay = Running::start(place.command(&settings));
    place.wait_for(DONE, i64::try_from(EVENTS).unwrap());
    relay.stop();
    let count = EVENTS.to_string();
    let read = [
        "--topic",
        &topic,
        "--from-beginning",
        "--max-messages",
        &count,
    ];
    let properties = ["--formatter-property", "print.headers=true"];
    let class = "org.apache.kafka.tools.consumer.ConsoleConsumer";
    let text = tool(class, &[&read[..], &properties].concat());
    let ids = text.lines().map(|line| line.split_once(',').unwrap().0);
    let ids: std::collections::BTreeSet<_> = ids.collect();
    assert_eq!(ids.len(), EVENTS, "each once");
    assert!(ids.iter().all(|id| id.starts_with("event-id:")), "{ids:?}");
}

/// What is ours can't be changed by a property, and no line of them is shown.
#[test]
fn creds_in_log_wrong_properties_are_told_by_name() {
    let place = Place::migrated();
    for (properties, told) in [
        ("acks = s3cret", "acks"),
        ("no.such = s3cret", "no.such"),
        ("s3cret", "line 1"),
    ] {
        let file = place.file("kafka.properties", properties);
        let text = format!(
            "[routes.default.publisher]\nurl = \"kafka://127.0.0.1:1\"\nproperties_file = \"{}\"\n",
            arg(&file)
        );
        let file = place.file("kafka.toml", text);
        let ended = place.outbox(&["relay", "--config", arg(&file), "--check"]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stdout.contains(told), "{ended:?}");
        let shown = format!("{ended:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
