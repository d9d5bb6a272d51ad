//! What the columns of SQL writers keep, what they change and what they refuse.

use outbox_core::{Enqueue as _, Event};
use outbox_postgres::PgOutbox;
use outbox_testkit::documents;
use serde_json::value::RawValue;

use crate::support::{Db, lane, limit, with_database};

/// The payloads that a claim hands out, by event type.
async fn claimed(db: &Db) -> Vec<(String, String)> {
    let queue = db.queue().await;
    let batch = lane(&queue, "w").await.claim(limit(100)).await.unwrap();
    assert_eq!(batch.unreadable.len(), 0);
    let mut seen: Vec<_> = batch
        .events
        .into_iter()
        .map(|event| {
            let payload = event.payload.unwrap().to_vec();
            (event.event_type, String::from_utf8(payload).unwrap())
        })
        .collect();
    seen.sort();
    seen
}

/// The SQLSTATE by which the server refuses it, `None` when it takes it.
async fn refusal(db: &Db, column: &str, value: &str) -> Option<String> {
    let insert = format!(
        "INSERT INTO outbox.queue ({column}{}) VALUES ($1{}{})",
        match column {
            "topic" => ", event_type",
            "event_type" => ", topic",
            _ => ", topic, event_type",
        },
        if column == "payload" || column == "headers" {
            "::jsonb"
        } else {
            ""
        },
        if column == "topic" || column == "event_type" {
            ", 't'"
        } else {
            ", 't', 'T'"
        },
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(value);
    let error = query.execute(&db.pool).await.err()?;
    let error = error.into_database_error().expect("the server's answer");
    Some(error.code().expect("a code").into_owned())
}

/// Raw JSON by the API is the bytes that were given.
#[tokio::test]
async fn number_fidelity_of_raw_json() {
    with_database(async |db| {
        db.queue().await;
        let outbox = PgOutbox::new("outbox").unwrap();
        let mut tx = db.pool.begin().await.unwrap();
        let mut expected = Vec::new();
        // Blanks around a value are no part of it.
        for (n, text) in documents::NUMBERS
            .into_iter()
            .map(str::trim_ascii)
            .enumerate()
        {
            let raw = RawValue::from_string(text.to_owned()).unwrap();
            let event = Event::new("t", n.to_string()).json(&raw).unwrap();
            outbox.enqueue(&mut tx, &event).await.unwrap();
            expected.push((n.to_string(), text.to_owned()));
        }
        tx.commit().await.unwrap();
        assert_eq!(claimed(db).await, expected);
    })
    .await;
}

/// The column `payload` is JSON as PostgreSQL keeps it: order of names, doubled names, blanks and the
/// form of a number (its exponent, a zero's sign) change as documented, its value never does.
#[tokio::test]
async fn number_fidelity_of_the_jsonb_column() {
    with_database(async |db| {
        db.queue().await;
        for (n, document) in documents::NUMBERS.into_iter().enumerate() {
            sqlx::query("INSERT INTO outbox.queue (topic, event_type, payload) VALUES ('t', $1, $2::jsonb)")
                .bind(n.to_string())
                .bind(document)
                .execute(&db.pool)
                .await
                .unwrap();
        }
        let power = format!("1{}", "0".repeat(400));
        let expected = [
            format!(r#"{{"a": 12345678901234567890, "b": 1.10, "c": 0.0, "d": {power}, "e": [1, 2.5], "f": 0.1000000000000000055}}"#),
            r#"{"a": 1.10, "z": 1, "é": "é/"}"#.to_owned(),
            r#"{"a": 9007199254740993, "z": [1, 2.50]}"#.to_owned(),
            "0.0".to_owned(),
        ];
        let seen = claimed(db).await;
        let seen: Vec<_> = seen.into_iter().map(|(_, payload)| payload).collect();
        assert_eq!(seen, expected);
    })
    .await;
}

/// The column `payload_bytes` takes what the server's JSON and text can't hold; these refuse it in
/// the writer's own statement, where it shows at once, and nothing half is written.
#[tokio::test]
async fn nul_in_jsonb_of_plain_sql() {
    const NO_SUCH_CHARACTER_IN_JSON: &str = "22P05";
    const NO_SUCH_CHARACTER_IN_TEXT: &str = "22021";
    with_database(async |db| {
        db.queue().await;
        let nul_in_json = Some(NO_SUCH_CHARACTER_IN_JSON.to_owned());
        let nul_in_text = Some(NO_SUCH_CHARACTER_IN_TEXT.to_owned());
        for (column, value, expected) in [
            ("payload", r#"{"a":"x\u0000y"}"#, &nul_in_json),
            ("payload", r#"{"\u0000k":1}"#, &nul_in_json),
            ("payload", "{\"a\":\"\0\"}", &nul_in_text),
            ("headers", r#"{"a":"\u0000"}"#, &nul_in_json),
            ("headers", r#"{"\u0000":"a"}"#, &nul_in_json),
            ("topic", "a\0b", &nul_in_text),
            ("event_type", "a\0b", &nul_in_text),
            ("key", "a\0b", &nul_in_text),
            ("aggregate_type", "a\0b", &nul_in_text),
            ("aggregate_id", "a\0b", &nul_in_text),
            ("content_type", "a\0b", &nul_in_text),
            ("dedup_key", "a\0b", &nul_in_text),
            ("payload", r#"{"a":"\\u0000"}"#, &None),
        ] {
            assert_eq!(refusal(db, column, value).await, *expected, "{column}");
        }
        assert_eq!(
            claimed(db).await,
            [("T".to_owned(), r#"{"a": "\\u0000"}"#.to_owned())],
            "escaped twice is no NUL and stays as it is"
        );
        let mut expected = Vec::new();
        for (n, document) in documents::NULS.into_iter().enumerate() {
            sqlx::query(
                "INSERT INTO outbox.queue (topic, event_type, payload_bytes) VALUES ('t', $1, $2)",
            )
            .bind(n.to_string())
            .bind(document.as_bytes())
            .execute(&db.pool)
            .await
            .unwrap();
            expected.push((n.to_string(), document.to_owned()));
        }
        assert_eq!(claimed(db).await, expected);
    })
    .await;
}
