use std::time::Duration;

use outbox_core::{
    DeadFilter, DeadLetters as _, DeadReason, ErrorKind, FailureNote, Inspect as _, Page,
    Settlement, Verdict,
};

use crate::support::{Db, lane, limit, with_database, with_encoding};

/// Claims everything, dead-letters what can't be read as the engine does, and returns why.
async fn verdicts(db: &Db, queue: &outbox_postgres::PgQueue) -> Vec<(i64, ErrorKind, String)> {
    let lane = lane(queue, "w").await;
    let batch = lane.claim(limit(1000)).await.unwrap();
    let settlements: Vec<_> = batch
        .events
        .iter()
        .map(|event| Settlement {
            position: event.position,
            verdict: Verdict::Done,
        })
        .chain(batch.unreadable.iter().map(|row| Settlement {
            position: row.position,
            verdict: Verdict::Dead {
                reason: DeadReason::Unreadable,
                note: FailureNote::from_error(&row.error),
                hold_key: false,
            },
        }))
        .collect();
    let settled = lane.settle(batch.token, &settlements).await.unwrap();
    assert_eq!(settled.lost, 0);
    assert_eq!(
        db.number("SELECT count(*) FROM outbox.queue WHERE status IN ('pending', 'processing')")
            .await,
        0,
        "no row is stuck"
    );
    batch
        .unreadable
        .into_iter()
        .map(|row| (row.position.0, row.error.kind(), row.error.to_string()))
        .collect()
}

#[tokio::test]
async fn rows_that_are_no_events_come_back_as_such() {
    with_database(async |db| {
        let queue = db.queue().await;
        let bad = [
            ("topic", "''", "topic is empty"),
            ("event_type", "''", "event type is empty"),
            ("topic", "E'a\\nb'", "control character"),
            ("key", "E'a\\x01b'", "control character"),
            ("event_version", "0", "version is 0"),
            ("event_version", "-1", "below zero"),
            ("headers", "'1'", "neither an object nor an array"),
            ("headers", "'[[1, 2]]'", "pair"),
            ("headers", "'{\"a\": {\"b64\": \"%\"}}'", "base64"),
            (
                "headers",
                "'{\"event-id\": \"1\"}'",
                "written by the outbox",
            ),
            ("headers", "'{\"n\": [1]}'", "neither text"),
            (
                "headers",
                "(repeat('[', 200) || repeat(']', 200))::jsonb",
                "pair",
            ),
            ("created_at", "'infinity'", "calendar"),
            ("created_at", "'-infinity'", "calendar"),
            ("created_at", "'294276-01-01'", "calendar"),
            ("payload", "to_jsonb(repeat('x', 900000))", "limit"),
            (
                "payload_bytes",
                "convert_to(repeat('x', 900001), 'UTF8')",
                "limit",
            ),
            (
                "headers",
                "jsonb_build_object('h', repeat('x', 900001))",
                "limit",
            ),
        ];
        for (column, value, _) in bad {
            // The columns that must be set, with a good value, unless it is the one in question.
            let (names, values) = match column {
                "topic" => ("event_type", "'t'"),
                "event_type" => ("topic", "'t'"),
                _ => ("topic, event_type", "'t', 't'"),
            };
            db.sql(&format!(
                "INSERT INTO outbox.queue ({column}, {names}) VALUES ({value}, {values})"
            ))
            .await;
        }
        db.fill(3).await;
        let told = verdicts(db, &queue).await;
        assert_eq!(told.len(), bad.len(), "{told:#?}");
        for ((column, value, part), (position, kind, text)) in bad.iter().zip(&told) {
            assert!(text.contains(part), "{column} = {value}: {text}");
            assert!(text.contains(&format!("row={position}")), "{text}");
            let expected = if *part == "limit" {
                ErrorKind::TooLarge
            } else {
                ErrorKind::InvalidEvent
            };
            assert_eq!(*kind, expected, "{text}");
            assert!(text.len() < 300, "the payload is not in it");
        }
        assert_eq!(db.count("done").await, 3, "the good ones flow");
        let dead = queue
            .list(
                &DeadFilter::default(),
                Page {
                    after: None,
                    limit: 100,
                },
            )
            .await
            .unwrap();
        assert_eq!(dead.len(), bad.len());
        assert!(
            dead.iter()
                .all(|line| line.reason == DeadReason::Unreadable && line.note.kind.is_some())
        );
        for line in dead {
            let letter = queue.get(line.event_id).await.unwrap().unwrap();
            assert_eq!(letter.summary, line);
            assert!(letter.event.is_err());
        }
    })
    .await;
}

#[tokio::test]
async fn the_limit_holds_to_the_byte() {
    with_database(async |db| {
        let queue = db.queue_with(|c| c.event_bytes_max = 1000).await;
        for bytes in [989, 990, 991] {
            // Topic, type and aggregate id are ten bytes, the id once although it is the key too.
            db.sql(&format!(
                "INSERT INTO outbox.queue (topic, event_type, aggregate_id, payload_bytes)
                 VALUES ('tttt', 'TTT', 'iii', convert_to(repeat('x', {bytes}), 'UTF8'))"
            ))
            .await;
        }
        let told = verdicts(db, &queue).await;
        assert_eq!(
            told.iter()
                .map(|(position, ..)| *position)
                .collect::<Vec<_>>(),
            [3]
        );
        assert!(
            told[0].2.contains("bytes=1001") && told[0].2.contains("limit=1000"),
            "{}",
            told[0].2
        );
    })
    .await;
}

#[tokio::test]
async fn text_that_is_no_utf8_is_told_and_passed() {
    with_encoding("SQL_ASCII", async |db| {
        let queue = db.queue().await;
        // Such a database takes any bytes as text.
        db.sql("SET client_encoding = 'SQL_ASCII'").await;
        db.sql(
            r#"INSERT INTO outbox.queue (topic, event_type, aggregate_id, payload) VALUES
                (E'caf\xe9', 'T', 'a', '{}'), ('t', E'\xff', 'b', '{}'), ('t', 'T', E'\xc3\x28', '{}'),
                ('t', 'T', E'caf\xc3\xa9', '{"a": "ok"}');
            INSERT INTO outbox.queue (topic, event_type, headers) VALUES ('t', 'T', E'{"a": "\xff"}')"#,
        )
        .await;
        let told = verdicts(db, &queue).await;
        assert_eq!(told.iter().map(|(position, ..)| *position).collect::<Vec<_>>(), [1, 2, 3, 5]);
        for (_, kind, text) in &told {
            assert_eq!(*kind, ErrorKind::InvalidEvent, "{text}");
        }
        assert_eq!(db.count("done").await, 1);
        let dead = queue.list(&DeadFilter::default(), Page { after: None, limit: 10 }).await.unwrap();
        assert_eq!(dead[0].topic, "caf\u{fffd}");
        assert!(queue.get(dead[0].event_id).await.unwrap().unwrap().event.is_err());

        db.sql(
            r"UPDATE outbox.queue SET status = 'pending', first_failed_at = now(), error_kind = 'mine',
                error = E'\xff' || repeat('x', 2000), next_attempt_at = 'infinity' WHERE id = 1",
        )
        .await;
        let failing = queue.failing(10, 10).await.unwrap();
        let topic = &failing.topics[0];
        assert_eq!((topic.topic.as_str(), topic.retry_in), ("caf\u{fffd}", Duration::MAX));
        assert_eq!(topic.last_failure.kind, None);
        assert!(topic.last_failure.text.starts_with("\u{fffd}x"), "{topic:?}");
    })
    .await;
}

#[tokio::test]
async fn other_encodings_arrive_as_utf8() {
    with_encoding("LATIN1", async |db| {
        let queue = db.queue().await;
        db.sql(
            "INSERT INTO outbox.queue (topic, event_type, payload) VALUES ('café', 'T', '\"é\"')",
        )
        .await;
        let batch = lane(&queue, "w").await.claim(limit(1)).await.unwrap();
        assert_eq!(batch.events[0].topic, "café");
        assert_eq!(batch.events[0].payload.as_deref(), Some("\"é\"".as_bytes()));
    })
    .await;
}

#[tokio::test]
async fn i10_numbers_in_headers_keep_every_digit() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.sql("INSERT INTO outbox.queue (topic, event_type, headers) VALUES ('t', 'T', '{\"n\": 123456789012345678901234567890, \"p\": 1.10}')").await;
        let batch = lane(&queue, "w").await.claim(limit(10)).await.unwrap();
        let headers = &batch.events[0].headers;
        assert_eq!(headers.get("n").unwrap(), "123456789012345678901234567890");
        assert_eq!(headers.get("p").unwrap(), "1.10");
    })
    .await;
}
