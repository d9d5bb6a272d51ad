//! Dead letters, from their death to their return.

use serde_json::{Value, json};

use crate::support::{Place, arg, stream};

/// Fields over 100 bytes are refused by this configuration.
const TIGHT: &str = "[routes.default.publisher]\nkind = \"redis\"\nfield_bytes_max = 100\n";

/// A place with 10 events delivered and 3 dead, two of them of the type `Big`.
fn with_dead() -> (Place, String) {
    let place = Place::migrated();
    let topic = place.topic("t");
    let long = "x".repeat(200);
    let mut input = crate::support::lines(&topic, 10);
    for (kind, key) in [("Big", "b1"), ("Big", "b2"), ("Huge", "h1")] {
        let line = json!({
            "topic": topic,
            "type": kind,
            "key": key,
            "payload_text": format!("s3cret {long}"),
            "content_type": "text/plain",
        });
        input += &line.to_string();
        input.push('\n');
    }
    place
        .outbox_with(&["enqueue", "--stdin"], input.as_bytes())
        .success();
    let tight = place.file("tight.toml", TIGHT);
    let relay = place.relay(&["--config", arg(&tight)]);
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'failed'",
        3,
    );
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        10,
    );
    let output = relay.stop();
    assert!(
        !output.contains("s3cret"),
        "a payload is in the log: {output}"
    );
    (place, topic)
}

fn list(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let mut all = vec!["dead", "list", "--json"];
    all.extend(arguments);
    let lines = place.outbox(&all).success();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn dead_letters_are_listed_shown_and_requeued() {
    let (place, topic) = with_dead();
    let all = list(&place, &[]);
    assert_eq!(all.len(), 3);
    assert_eq!(all[0]["reason"], "rejected");
    assert_eq!(all[0]["error_kind"], "too_large");
    assert!(all[0]["remedy"].as_str().unwrap().contains("message limit"));
    for (filter, count) in [
        (&["--type", "Big"][..], 2),
        (&["--key", "h1"], 1),
        (&["--topic", &topic, "--kind", "too_large"], 3),
        (&["--kind", "refused"], 0),
        (&["--older-than", "1h"], 0),
        (&["--older-than", "0s"], 3),
        (&["--limit", "2"], 2),
    ] {
        assert_eq!(list(&place, filter).len(), count, "{filter:?}");
    }
    let after = all[1]["position"].to_string();
    assert_eq!(list(&place, &["--after", &after]), all[2..]);
    let text = place.outbox(&["dead", "list", "--limit", "2"]).success();
    assert!(
        text.contains("too_large") && text.contains(&format!("--after {after}")),
        "{text}"
    );

    let id = all[2]["id"].as_str().unwrap();
    let shown = place.outbox(&["dead", "show", id]).success();
    for part in [
        id,
        "Huge",
        "h1",
        "rejected",
        "too_large",
        "what to do",
        "bytes; shown by --payload",
    ] {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(
        place
            .outbox(&["dead", "show", id, "--payload"])
            .success()
            .contains("s3cret")
    );
    let json = place.outbox(&["dead", "show", id, "--json"]).success();
    assert!(!json.contains("s3cret"), "{json}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["event"]["type"], "Huge");

    let plan = place
        .outbox(&["dead", "requeue", "--type", "Big", "--dry-run"])
        .success();
    let (count, groups) = plan.split_once('\n').unwrap();
    assert_eq!(count, "2 would be requeued");
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let rows: Vec<_> = groups.lines().skip(1).map(words).collect();
    assert_eq!(rows, [words(&format!("2 {topic} Big too_large"))]);
    assert_eq!(list(&place, &[]).len(), 3);
    assert_eq!(
        place
            .outbox(&["dead", "requeue", "--type", "Big"])
            .success(),
        "2 requeued\n"
    );
    assert_eq!(
        place.outbox(&["dead", "discard", id]).success(),
        "1 discarded\n"
    );
    assert!(
        place
            .outbox(&["dead", "list"])
            .success()
            .contains("no dead letters")
    );

    let relay = place.relay(&[]);
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        12,
    );
    relay.stop();
    assert_eq!(stream(&topic).len(), 12);
}

#[test]
fn nothing_is_touched_without_a_selection() {
    let (place, _) = with_dead();
    let hint = &["none is selected", "--all"][..];
    place.outbox(&["dead", "requeue"]).failure(2, hint);
    place.outbox(&["dead", "discard"]).failure(2, hint);
    place.outbox(&["dead", "discard", "--yes"]).failure(2, hint);
    place
        .outbox(&["dead", "discard", "--all"])
        .failure(2, &["--yes", "--dry-run"]);
    assert_eq!(list(&place, &[]).len(), 3);
    let plan = place
        .outbox(&["dead", "discard", "--all", "--dry-run"])
        .success();
    assert!(plan.starts_with("3 would be discarded\n"), "{plan}");
    assert_eq!(
        place
            .outbox(&["dead", "discard", "--all", "--yes"])
            .success(),
        "3 discarded\n"
    );
    assert_eq!(
        place.outbox(&["dead", "requeue", "--all"]).success(),
        "0 requeued\n"
    );
}

#[test]
fn bulk_changes_go_in_steps_and_touch_all() {
    let place = Place::migrated();
    place.sql(
        "INSERT INTO outbox.queue (topic, event_type, status, dead_reason, payload)
         SELECT 't', 'T', 'failed', 'rejected', '{}' FROM generate_series(1, 2500)",
    );
    assert_eq!(
        place.outbox(&["dead", "requeue", "--all"]).success(),
        "2500 requeued\n"
    );
    assert_eq!(
        place.number("SELECT count(*) FROM outbox.queue WHERE status = 'pending'"),
        2500
    );
    place.sql("UPDATE outbox.queue SET status = 'failed', dead_reason = 'rejected'");
    let discard = ["dead", "discard", "--topic", "t", "--yes"];
    assert_eq!(place.outbox(&discard).success(), "2500 discarded\n");
    assert_eq!(place.number("SELECT count(*) FROM outbox.queue"), 0);
}

#[test]
fn an_id_that_is_no_dead_letter_is_told() {
    let place = Place::migrated();
    let id = "00000000-0000-7000-8000-000000000001";
    place
        .outbox(&["dead", "show", id])
        .failure(1, &[id, "outbox dead list"]);
    for command in [&["dead", "requeue", id], &["dead", "discard", id]] {
        let ended = place.outbox(command);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("1 of 1 ids"), "{ended:?}");
    }
    let ended = place.outbox(&["dead", "show", "no-uuid"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
