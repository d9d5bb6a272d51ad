//! A null payload, an empty one and the JSON `null` are three things; so are no key and an empty key.

use std::collections::BTreeMap;

use outbox_core::Event;
use serde_json::{Value, json};

use crate::support::{Entry, Place};

/// Rows as SQL writes them: name, columns, values.
const BY_SQL: [(&str, &str, &str); 10] = [
    ("null", "", ""),
    ("empty", ", payload_bytes", ", ''"),
    ("json null", ", payload", ", 'null'"),
    ("bytes null", ", payload_bytes", ", 'null'"),
    ("null, no key", ", key", ", NULL"),
    ("null, empty key", ", key", ", ''"),
    ("empty, empty key", ", key, payload_bytes", ", '', ''"),
    ("no headers", ", headers", ", NULL"),
    ("empty headers", ", headers", ", '[]'"),
    (
        "duplicate headers",
        ", headers",
        r#", '[["h", "1"], ["H", "2"], ["h", ""], ["h", "1"]]'"#,
    ),
];

/// What of an entry the case is about: payload, mark of the null payload, key, headers.
type Shown = (Vec<u8>, bool, Option<String>, Option<Value>);

fn shown(entry: &Entry) -> (String, Shown) {
    let headers = entry.field("headers");
    let mark = entry.field("outbox-null");
    assert!(mark.is_none_or(|mark| mark == b"1"), "{entry:?}");
    (
        entry.text("event-type").unwrap().to_owned(),
        (
            entry.field("payload").expect("always there").to_vec(),
            mark.is_some(),
            entry.text("key").map(str::to_owned),
            headers.map(|json| serde_json::from_slice(json).unwrap()),
        ),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_payload() {
    let place = Place::shared().await;
    let topic = place.topic("t");
    for (name, columns, values) in BY_SQL {
        place
            .sql(&format!(
                "INSERT INTO outbox.queue (topic, event_type {columns}) VALUES ('{topic}', '{name}' {values})"
            ))
            .await;
    }
    let event = |name: &str| Event::new(&topic, name);
    place
        .enqueue(&[
            event("rust null").tombstone().unwrap(),
            event("rust empty").key("").bytes("").unwrap(),
            event("rust json null").json(&Value::Null).unwrap(),
            event("rust headers")
                .header("h", "")
                .header("h", vec![0xff, 0x00])
                .header("h", "")
                .tombstone()
                .unwrap(),
        ])
        .await;
    let relay = place.relay().started().await;
    place.until_count("status = 'done'", BY_SQL.len() + 4).await;
    relay.stop().await;

    let found = place.entries(&topic).await;
    assert_eq!(found.len(), BY_SQL.len() + 4, "each once");
    let found: BTreeMap<String, Shown> = found.iter().map(shown).collect();
    let null = || (vec![], true, None, None);
    let bytes = |bytes: &str| (bytes.as_bytes().to_vec(), false, None, None);
    let keyed = |shown: Shown| (shown.0, shown.1, Some(String::new()), shown.3);
    let headed = |headers: Value| (vec![], true, None, Some(headers));
    let expected: BTreeMap<String, Shown> = [
        ("null", null()),
        ("empty", bytes("")),
        ("json null", bytes("null")),
        ("bytes null", bytes("null")),
        ("null, no key", null()),
        ("null, empty key", keyed(null())),
        ("empty, empty key", keyed(bytes(""))),
        ("no headers", null()),
        ("empty headers", null()),
        (
            "duplicate headers",
            headed(json!([["h", "1"], ["H", "2"], ["h", ""], ["h", "1"]])),
        ),
        ("rust null", null()),
        ("rust empty", keyed(bytes(""))),
        ("rust json null", bytes("null")),
        (
            "rust headers",
            headed(json!([["h", ""], ["h", {"b64": "/wA="}], ["h", ""]])),
        ),
    ]
    .into_iter()
    .map(|(name, shown)| (name.to_owned(), shown))
    .collect();
    assert_eq!(found, expected);
}
