//! Bytes that go into the program are the bytes that leave it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_testkit::documents;
use serde_json::{Value, json, value::RawValue};

use crate::support::{Place, Running, arg, redis};

/// An entry of a stream: its id, and its fields with their values.
type Entry = (String, Vec<(String, Vec<u8>)>);

/// The payloads of a stream by event type, as the server holds them.
fn stored(topic: &str) -> Vec<(String, Vec<u8>)> {
    let range = redis::cmd("XRANGE")
        .arg(topic)
        .arg("-")
        .arg("+")
        .query(&mut redis());
    let entries: Vec<Entry> = range.unwrap();
    let field = |fields: &[(String, Vec<u8>)], name: &str| {
        let found = fields.iter().find(|(field, _)| field == name);
        found.unwrap().1.clone()
    };
    let mut payloads: Vec<_> = entries
        .iter()
        .map(|(_, fields)| {
            let event_type = String::from_utf8(field(fields, "event-type")).unwrap();
            (event_type, field(fields, "payload"))
        })
        .collect();
    payloads.sort();
    payloads
}

/// What a relay prints until so many events are done.
fn printed(place: &Place, count: usize) -> String {
    let mut relay = Running::start(place.command(&["relay", "--publisher", "stdout"]));
    let stdout = relay.take_stdout();
    let done = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";
    place.wait_for(done, i64::try_from(count).unwrap());
    relay.stop();
    std::io::read_to_string(stdout).unwrap()
}

/// Writes documents by every way into the program that can hold them: the same type by each way.
fn enqueue(place: &Place, topic: &str, documents: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut expected = Vec::new();
    for (n, document) in documents.iter().enumerate() {
        let mut write = |way: &str, arguments: &[&str], line: &str| {
            let event_type = format!("{way} {n}");
            let line = line.replace("TYPE", &event_type);
            let mut all = vec!["enqueue"];
            if line.is_empty() {
                all.extend(["--topic", topic, "--type", &event_type]);
            }
            all.extend(arguments);
            place.outbox_with(&all, line.as_bytes()).success();
            expected.push((event_type, document.as_bytes().to_vec()));
        };
        let head = json!({"topic": topic, "type": "TYPE"}).to_string();
        let head = head.trim_end_matches('}');
        let is_json = serde_json::from_str::<&RawValue>(document).is_ok();
        let content_type = if is_json {
            "application/json"
        } else {
            "application/octet-stream"
        };
        let file = place.file("payload", document);
        let of_type = ["--content-type", content_type];
        let flags = [&of_type[..], &["--payload-file", arg(&file)]].concat();
        write("file", &flags, "");
        if !document.contains('\0') {
            let flags = [&of_type[..], &["--payload", document]].concat();
            write("flag", &flags, "");
        }
        let text = Value::from(*document);
        write(
            "text",
            &["--stdin"],
            &format!("{head},\"payload_text\":{text}}}\n"),
        );
        let base64 = STANDARD.encode(document);
        write(
            "base64",
            &["--stdin"],
            &format!("{head},\"payload_base64\":\"{base64}\"}}\n"),
        );
        if is_json && !document.contains('\n') && document.trim_ascii() == *document {
            write(
                "json",
                &["--stdin"],
                &format!("{head},\"payload\":{document}}}\n"),
            );
        }
    }
    expected.sort();
    expected
}

/// Into a stream, and out of `stdout` and in again and into another stream: all the same bytes.
fn arrive(documents: &[&str]) {
    let place = Place::migrated();
    let topic = place.topic("fidelity");
    let expected = enqueue(&place, &topic, documents);
    let relay = place.relay(&[]);
    let done = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";
    let count = expected.len();
    place.wait_for(done, i64::try_from(count).unwrap());
    relay.stop();
    assert_eq!(stored(&topic), expected);

    place.sql("UPDATE outbox.queue SET status = 'pending', processed_at = NULL");
    let lines = printed(&place, count);
    place.sql("DELETE FROM outbox.queue");
    let copy = place.topic("copy");
    let lines = lines.replace(&format!("\"{topic}\""), &format!("\"{copy}\""));
    place
        .outbox_with(&["enqueue", "--stdin"], lines.as_bytes())
        .success();
    let relay = place.relay(&[]);
    place.wait_for(done, i64::try_from(count).unwrap());
    relay.stop();
    assert_eq!(stored(&copy), expected);
}

#[test]
fn number_fidelity() {
    arrive(&documents::NUMBERS);
}

#[test]
fn nul_in_jsonb() {
    arrive(&documents::NULS);
}

/// A name with NUL is refused by its field and line before anything is connected to.
#[test]
fn nul_in_jsonb_names() {
    let place = Place::empty();
    for (name, field) in [
        ("topic", "topic"),
        ("type", "event type"),
        ("key", "key"),
        ("aggregate_id", "aggregate id"),
        ("aggregate_type", "aggregate type"),
        ("content_type", "content type"),
        ("dedup_key", "dedup key"),
    ] {
        let mut line = json!({"topic": "t", "type": "T", "payload": 1});
        if name.starts_with("aggregate") {
            line["aggregate_id"] = "1".into();
            line["aggregate_type"] = "order".into();
        }
        line[name] = "a\0b".into();
        place
            .outbox_with(&["enqueue", "--stdin"], format!("{line}\n").as_bytes())
            .failure(
                6,
                &[
                    "line 1",
                    &format!("{field} holds a control character at byte 1"),
                ],
            );
    }
    let line = json!({"topic": "t", "type": "T", "payload": 1, "headers": [["a\0b", "v"]]});
    place
        .outbox_with(&["enqueue", "--stdin"], format!("{line}\n").as_bytes())
        .failure(
            6,
            &["line 1", "header name holds a control character at byte 1"],
        );
}
