//! From an empty database to a stream.

use serde_json::Value;

use crate::support::{Place, entries, field, lines, stream};

#[test]
fn an_event_goes_from_the_command_line_to_a_stream() {
    let place = Place::empty();
    assert_eq!(
        place.outbox(&["migrate"]).success(),
        "made the schema at version 2\n"
    );
    assert_eq!(
        place.outbox(&["migrate"]).success(),
        "nothing to do: the schema is at version 2\n"
    );
    place.outbox(&["migrate", "--check"]).success();

    let topic = place.topic("orders");
    let flags = [
        "enqueue",
        "--topic",
        &topic,
        "--type",
        "OrderPlaced",
        "--aggregate",
        "order:4711",
        "--header",
        "tenant=a",
        "--payload",
        "{\"total\": 1.10}",
    ];
    let id = place.outbox(&flags).success().trim().to_owned();
    let more = place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, 20).as_bytes())
        .success();
    let status = place.outbox(&["status"]).success();
    assert!(status.contains("pending    21"), "{status}");

    let relay = place.relay(&[]);
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        21,
    );
    assert_eq!(relay.get("/readyz").0, 200);
    let (_, metrics) = relay.get("/metrics");
    let published = format!(
        "outbox_published_total{{store=\"postgres-queue\",route=\"default\",topic=\"{topic}\"}} 21"
    );
    assert!(metrics.contains(&published), "{metrics}");
    for name in [
        "outbox_publish_seconds_bucket",
        "outbox_batch_events_bucket",
        "outbox_route_open",
    ] {
        assert!(metrics.contains(name), "{name} is missing: {metrics}");
    }
    assert!(!metrics.contains("4711"), "a key is no label: {metrics}");
    assert_eq!(relay.get("/healthz"), (200, "ok\n".to_owned()));
    let log = relay.stop();
    assert!(
        log.contains("publisher=\"redis\"") && log.contains("schema_version=2"),
        "{log}"
    );

    let mut expected: Vec<_> = more
        .lines()
        .map(str::to_owned)
        .chain([id.clone()])
        .collect();
    let mut found = stream(&topic);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let entry = &entries(&topic)[0];
    assert_eq!(field(entry, "event-id"), id);
    assert_eq!(field(entry, "payload"), "{\"total\": 1.10}");
    assert_eq!(field(entry, "key"), "4711");

    let status: Value =
        serde_json::from_str(&place.outbox(&["status", "--json"]).success()).unwrap();
    assert_eq!(status["pending"]["value"], 0);
    assert_eq!(status["dead"]["value"], 0);
}

#[test]
fn printed_sql_does_what_migrate_does() {
    let place = Place::empty();
    let sql = place
        .outbox(&["migrate", "--print", "--schema", "shop"])
        .success();
    assert!(sql.contains("-- version 1: "), "{sql}");
    place
        .outbox(&["migrate", "--check", "--schema", "shop"])
        .failure(5, &["schema_missing", "outbox migrate"]);
    place.sql(&sql);
    place
        .outbox(&["migrate", "--check", "--schema", "shop"])
        .success();
    let topic = place.topic("t");
    place
        .outbox(&[
            "enqueue",
            "--schema",
            "shop",
            "--topic",
            &topic,
            "--type",
            "T",
            "--tombstone",
        ])
        .success();
    assert_eq!(place.number("SELECT count(*) FROM shop.queue"), 1);
}

#[test]
fn stdout_lines_can_be_enqueued_again() {
    let place = Place::migrated();
    let input = concat!(
        r#"{"topic":"t","type":"T","payload":{"a":[1.10,"ä"]},"key":""}"#,
        "\n",
        r#"{"topic":"t","type":"T","payload_base64":"/wA=","content_type":"application/octet-stream"}"#,
        "\n",
        r#"{"topic":"t","type":"T","tombstone":true,"headers":[["h","1"],["h",{"b64":"/w=="}]]}"#,
        "\n",
        r#"{"topic":"t","type":"T","payload_text":"","content_type":"text/plain"}"#,
        "\n",
    );
    place
        .outbox_with(&["enqueue", "--stdin"], input.as_bytes())
        .success();
    let first = drained(&place, 4);
    let parts = [
        r#""key":"""#,
        r#""payload":{"a":[1.10,"ä"]}"#,
        r#""payload_base64":"/wA=""#,
        r#""tombstone":true"#,
        r#""payload_text":"""#,
        r#"["h",{"b64":"/w=="}]"#,
    ];
    for part in parts {
        assert!(first.contains(part), "no {part} in {first}");
    }
    place.sql("DELETE FROM outbox.queue");
    place
        .outbox_with(&["enqueue", "--stdin"], first.as_bytes())
        .success();
    let without_time = |text: &str| -> Vec<Value> {
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .map(|mut line| {
                line["created_at"].take();
                line
            })
            .collect()
    };
    assert_eq!(without_time(&drained(&place, 4)), without_time(&first));
}

/// What a relay prints until so many events are done.
fn drained(place: &Place, count: i64) -> String {
    let mut relay =
        crate::support::Running::start(place.command(&["relay", "--publisher", "stdout"]));
    let stdout = relay.take_stdout();
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        count,
    );
    relay.stop();
    std::io::read_to_string(stdout).unwrap()
}

#[test]
fn a_route_takes_its_topics_only() {
    let place = Place::migrated();
    let (mine, other) = (place.topic("mine.a"), place.topic("other"));
    place
        .outbox_with(
            &["enqueue", "--stdin"],
            format!("{}{}", lines(&mine, 3), lines(&other, 2)).as_bytes(),
        )
        .success();
    let relay = place.relay(&["--topic", &place.topic("mine.*")]);
    place.wait_for("SELECT count(*) FROM outbox.queue WHERE status = 'done'", 3);
    relay.stop();
    assert_eq!((stream(&mine).len(), stream(&other).len()), (3, 0));
}
