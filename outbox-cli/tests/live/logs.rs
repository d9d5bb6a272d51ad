//! What a relay writes about an event that fails, for whoever looks for it.

use serde_json::{Value, json};

use crate::support::{Place, arg};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Writes an event that is too large for the publisher and gives its id and the relay's log about it.
fn dead_letter(format: &str) -> (Place, String, String) {
    let place = Place::migrated();
    let topic = place.topic("t");
    let event = json!({
        "topic": topic, "type": "T", "aggregate_type": "order", "aggregate_id": "4711",
        "headers": {"traceparent": format!("00-{TRACE}-00f067aa0ba902b7-01")},
        "payload_text": "s3cret".repeat(50),
    });
    let written = place.outbox_with(&["enqueue", "--stdin"], event.to_string().as_bytes());
    let id = written.success().trim().to_owned();
    let settings = format!(
        "[log]\nformat = \"{format}\"\n[routes.default.publisher]\nkind = \"redis\"\nfield_bytes_max = 100\n"
    );
    let settings = place.file("settings.toml", settings);
    let relay = place.relay(&["--config", arg(&settings)]);
    relay.wait_for_log("dead letter");
    let log = relay.stop();
    assert!(!log.contains("s3cret"), "no payload: {log}");
    (place, id, log)
}

#[test]
fn a_dead_letter_in_json() {
    let (place, id, log) = dead_letter("json");
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let dead = lines
        .iter()
        .find(|line| line["message"] == "dead letter")
        .unwrap();
    let expected = [
        ("level", json!("ERROR")),
        ("event_id", json!(id)),
        ("aggregate_type", json!("order")),
        ("aggregate_id", json!("4711")),
        ("topic", json!(place.topic("t"))),
        ("attempt", json!(1)),
        ("trace_id", json!(TRACE)),
        ("route", json!("default")),
    ];
    for (name, value) in expected {
        assert_eq!(dead[name], value, "{name}: {dead}");
    }
}

#[test]
fn a_dead_letter_in_text() {
    let (place, id, log) = dead_letter("text");
    let dead = log
        .lines()
        .find(|line| line.contains("dead letter"))
        .unwrap();
    let topic = place.topic("t");
    for (name, value) in [
        ("event_id", id.as_str()),
        ("aggregate_type", "\"order\""),
        ("aggregate_id", "\"4711\""),
        ("topic", &format!("{topic:?}")),
        ("attempt", "1"),
        ("trace_id", &format!("{TRACE:?}")),
    ] {
        let field = format!("{name}={value}");
        assert!(dead.contains(&field), "no {field} in {dead}");
    }
}
