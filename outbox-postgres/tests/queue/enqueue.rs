use std::time::Duration;

use outbox_core::{Enqueue as _, Enqueued, ErrorKind, Event, Headers, Store as _};
use outbox_postgres::PgOutbox;
use sqlx::{Acquire as _, AssertSqlSafe};

use crate::support::{Db, lane, limit, with_database};

fn event(n: usize) -> Event {
    Event::new("orders", "OrderPlaced")
        .aggregate("order", n.to_string())
        .json(&n)
        .unwrap()
}

#[tokio::test]
async fn i1_rolled_back_events_never_existed() {
    with_database(async |db| {
        db.queue().await;
        let outbox = PgOutbox::new("outbox").unwrap();
        let mut tx = db.pool.begin().await.unwrap();
        outbox.enqueue(&mut tx, &event(1)).await.unwrap();
        {
            let mut savepoint = tx.begin().await.unwrap();
            outbox
                .enqueue_all(&mut savepoint, &[event(2), event(3)])
                .await
                .unwrap();
            savepoint.rollback().await.unwrap();
        }
        let mut savepoint = tx.begin().await.unwrap();
        outbox.enqueue(&mut savepoint, &event(4)).await.unwrap();
        savepoint.commit().await.unwrap();
        assert_eq!(
            db.number("SELECT count(*) FROM outbox.queue").await,
            0,
            "nothing is seen before the commit"
        );
        tx.commit().await.unwrap();

        let mut tx = db.pool.begin().await.unwrap();
        outbox.enqueue(&mut tx, &event(5)).await.unwrap();
        tx.rollback().await.unwrap();

        let left = db
            .text("SELECT string_agg(aggregate_id, ',' ORDER BY id) FROM outbox.queue")
            .await;
        assert_eq!(left.as_deref(), Some("1,4"));
    })
    .await;
}

#[tokio::test]
async fn i1_a_panic_in_the_transaction_takes_its_events_back() {
    with_database(async |db| {
        db.queue().await;
        let pool = db.pool.clone();
        let task = tokio::spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            PgOutbox::new("outbox")
                .unwrap()
                .enqueue(&mut tx, &event(1))
                .await
                .unwrap();
            panic!("business logic failed");
        });
        assert!(task.await.unwrap_err().is_panic());
        let mut tx = db.pool.begin().await.unwrap();
        PgOutbox::new("outbox")
            .unwrap()
            .enqueue(&mut tx, &event(2))
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let left = db
            .text("SELECT string_agg(aggregate_id, ',') FROM outbox.queue")
            .await;
        assert_eq!(left.as_deref(), Some("2"));
    })
    .await;
}

#[tokio::test]
async fn outside_a_transaction_it_is_refused() {
    with_database(async |db| {
        db.queue().await;
        let outbox = PgOutbox::new("outbox").unwrap();
        let mut connection = db.pool.acquire().await.unwrap();
        let error = outbox
            .enqueue(&mut connection, &event(1))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("allow_autocommit"), "{error}");
        assert!(
            outbox
                .enqueue_all(&mut connection, &[event(1)])
                .await
                .is_err()
        );

        // The driver can't see a transaction begun by hand.
        sqlx::raw_sql("BEGIN")
            .execute(&mut *connection)
            .await
            .unwrap();
        assert_eq!(
            outbox
                .enqueue(&mut connection, &event(2))
                .await
                .unwrap_err()
                .kind(),
            ErrorKind::Configuration
        );
        let knowing = outbox.clone().allow_autocommit();
        knowing.enqueue(&mut connection, &event(3)).await.unwrap();
        sqlx::raw_sql("ROLLBACK")
            .execute(&mut *connection)
            .await
            .unwrap();
        assert_eq!(db.number("SELECT count(*) FROM outbox.queue").await, 0);

        knowing.enqueue(&mut connection, &event(4)).await.unwrap();
        assert_eq!(db.number("SELECT count(*) FROM outbox.queue").await, 1);
    })
    .await;
}

#[tokio::test]
async fn i10_every_field_comes_back_as_it_went_in() {
    with_database(async |db| {
        let queue = db.queue().await;
        let outbox = PgOutbox::new("outbox").unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        let rich = || {
            Event::new("a.b", "T")
                .key("ключ")
                .aggregate("order", "7")
                .version(3)
                .content_type("application/octet-stream")
                .header("h", "1")
                .header("h", "2")
                .header("empty", "")
                .header("bytes", bytes.clone())
        };
        let events = [
            rich().bytes(bytes.clone()).unwrap(),
            rich().bytes("").unwrap(),
            rich().tombstone().unwrap(),
            Event::new("t", "T").bytes("null").unwrap(),
            Event::new("t", "T")
                .key("")
                .json(&serde_json::json!({"b": 1, "a": [1.0, "x"]}))
                .unwrap(),
            Event::new("t", "T")
                .aggregate("order", "7")
                .tombstone()
                .unwrap(),
        ];
        let mut tx = db.pool.begin().await.unwrap();
        outbox.enqueue_all(&mut tx, &events).await.unwrap();
        for event in &events {
            outbox.enqueue(&mut tx, event).await.unwrap();
        }
        tx.commit().await.unwrap();
        let batch = lane(&queue, "w").await.claim(limit(100)).await.unwrap();
        assert_eq!(batch.events.len(), 2 * events.len());
        for (stored, event) in batch.events.iter().zip(events.iter().chain(&events)) {
            assert_eq!(stored.id, event.id());
            assert_eq!(stored.topic, event.topic());
            assert_eq!(stored.key.as_deref(), event.key());
            assert_eq!(stored.event_type, event.event_type());
            assert_eq!(stored.event_version, event.event_version());
            assert_eq!(stored.aggregate_type.as_deref(), event.aggregate_type());
            assert_eq!(stored.aggregate_id.as_deref(), event.aggregate_id());
            assert_eq!(stored.content_type.as_deref(), event.content_type());
            assert_eq!(stored.payload.as_ref(), event.payload());
            assert_eq!(&stored.headers, event.headers());
            assert_eq!(
                (stored.attempts, stored.crashes, stored.failing_for),
                (1, 0, None)
            );
            assert!(stored.created_at <= batch.claimed_at);
        }
    })
    .await;
}

#[tokio::test]
async fn null_payload_of_plain_sql() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.sql(
            r#"INSERT INTO outbox.queue (topic, event_type, aggregate_type, aggregate_id, payload, key, headers) VALUES
                ('orders', 'OrderPlaced', 'order', '4711', '{"b":1,  "a":2}', NULL, '{"source": "sql", "n": 1}'),
                ('orders', 'OrderDeleted', 'order', '4711', NULL, NULL, NULL),
                ('orders', 'OrderPlaced', NULL, NULL, 'null', '', NULL);
            INSERT INTO outbox.queue (topic, event_type, payload_bytes) VALUES ('orders', 'Raw', ''), ('orders', 'Raw', '\x00ff')"#,
        )
        .await;
        let batch = lane(&queue, "w").await.claim(limit(100)).await.unwrap();
        let read: Vec<_> = batch
            .events
            .iter()
            .map(|e| (e.payload.as_deref(), e.key.as_deref(), e.content_type.as_deref()))
            .collect();
        let json = Some("application/json");
        assert_eq!(
            read,
            [
                (Some(&br#"{"a": 2, "b": 1}"#[..]), Some("4711"), json),
                (None, Some("4711"), None),
                (Some(&b"null"[..]), Some(""), json),
                (Some(&b""[..]), None, None),
                (Some(&b"\x00\xff"[..]), None, None),
            ]
        );
        let headers: Headers = [("n", "1"), ("source", "sql")].into_iter().collect();
        assert_eq!(batch.events[0].headers, headers);
        let both = "INSERT INTO outbox.queue (topic, event_type, payload, payload_bytes) VALUES ('t', 'T', '1', '1')";
        assert!(sqlx::query(both).execute(&db.pool).await.is_err(), "one payload or the other");
    })
    .await;
}

#[tokio::test]
async fn i12_deliver_after_counts_on_the_databases_clock() {
    with_database(async |db| {
        let queue = db.queue().await;
        let lane = lane(&queue, "w").await;
        let outbox = PgOutbox::new("outbox").unwrap();
        let later = |delay| {
            Event::new("t", "T")
                .deliver_after(delay)
                .bytes("x")
                .unwrap()
        };
        let mut tx = db.pool.begin().await.unwrap();
        outbox
            .enqueue(&mut tx, &later(Duration::from_millis(600)))
            .await
            .unwrap();
        outbox
            .enqueue_all(
                &mut tx,
                &[later(Duration::from_millis(600)), later(Duration::MAX)],
            )
            .await
            .unwrap();
        tx.commit().await.unwrap();
        assert!(lane.claim(limit(10)).await.unwrap().is_empty());
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(
            lane.claim(limit(10)).await.unwrap().events.len(),
            2,
            "the third is due in a century"
        );
    })
    .await;
}

/// A role that may write events and nothing else.
async fn writer(db: &Db) -> String {
    let role = format!("{}_writer", db.name);
    db.sql(&format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA outbox TO {role}; GRANT INSERT ON outbox.queue TO {role}"
    ))
    .await;
    role
}

#[tokio::test]
async fn a_role_that_may_only_insert_can_enqueue() {
    with_database(async |db| {
        let queue = db.queue().await;
        let role = writer(db).await;
        let mut tx = db.pool.begin().await.unwrap();
        sqlx::query(AssertSqlSafe(format!("SET LOCAL ROLE {role}")))
            .execute(&mut *tx)
            .await
            .unwrap();
        let outbox = PgOutbox::new("outbox").unwrap();
        let one = outbox.enqueue(&mut tx, &event(1)).await;
        let many = outbox.enqueue_all(&mut tx, &[event(2), event(3)]).await;
        tx.commit().await.unwrap();

        // A right that is missing is named as such.
        db.sql(&format!("REVOKE INSERT ON outbox.queue FROM {role}"))
            .await;
        let mut tx = db.pool.begin().await.unwrap();
        sqlx::query(AssertSqlSafe(format!("SET LOCAL ROLE {role}")))
            .execute(&mut *tx)
            .await
            .unwrap();
        let refused = outbox.enqueue(&mut tx, &event(4)).await.unwrap_err();
        drop(tx);
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
            .await;
        one.unwrap();
        many.unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unauthorized, "{refused}");
        assert_eq!(
            lane(&queue, "w")
                .await
                .claim(limit(10))
                .await
                .unwrap()
                .events
                .len(),
            3
        );
        queue.check().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_writer_takes_dedup_keys_by_its_events_alone() {
    with_database(async |db| {
        db.queue().await;
        let role = writer(db).await;
        let mut tx = db.pool.begin().await.unwrap();
        let mut run = async |sql: String| sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await;
        run(format!("SET LOCAL ROLE {role}")).await.unwrap();
        let written = run(
            "INSERT INTO outbox.queue (topic, event_type, dedup_key) VALUES ('t', 'T', 'k')".into(),
        )
        .await;
        run("CREATE TEMP TABLE mine (dedup_key text, event_id uuid)".into())
            .await
            .unwrap();
        let taken = run(
            "CREATE TRIGGER take BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION outbox.dedup()"
                .into(),
        )
        .await;
        tx.rollback().await.unwrap();
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
            .await;
        assert_eq!(written.unwrap().rows_affected(), 1);
        let refused = taken.unwrap_err();
        let refused = refused.as_database_error().unwrap();
        assert_eq!(refused.code().as_deref(), Some("42501"), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn without_a_schema_it_says_so() {
    with_database(async |db| {
        let mut tx = db.pool.begin().await.unwrap();
        let error = PgOutbox::new("outbox")
            .unwrap()
            .enqueue(&mut tx, &event(1))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
    })
    .await;
}

/// Plain SQL writers get the same, and need no right on the table of keys.
#[tokio::test]
async fn a_dedup_key_works_by_sql() {
    with_database(async |db| {
        let queue = db.queue().await;
        let role = writer(db).await;
        let mut tx = db.pool.begin().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SET LOCAL ROLE {role}")))
            .execute(&mut *tx)
            .await
            .unwrap();
        let mut rows = Vec::new();
        for key in ["'a'", "'a'", "NULL", "NULL", "'b'"] {
            let insert = format!(
                "INSERT INTO outbox.queue (topic, event_type, dedup_key) VALUES ('t', 'T', {key})"
            );
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(insert))
                .execute(&mut *tx)
                .await
                .unwrap();
            rows.push(done.rows_affected());
        }
        assert_eq!(rows, [1, 0, 1, 1, 1]);
        // The same role by the API, one by one: no right to read is needed.
        let outbox = PgOutbox::new("outbox").unwrap();
        let event = Event::new("t", "T").dedup_key("a").tombstone().unwrap();
        let told = outbox.enqueue(&mut tx, &event).await.unwrap();
        assert_eq!(told, Enqueued::Duplicate);
        tx.commit().await.unwrap();
        let same_event =
            "SELECT count(*) FROM outbox.dedup JOIN outbox.queue USING (dedup_key, event_id)";
        assert_eq!(db.number(same_event).await, 2);
        // What dies and is discarded stays known.
        db.sql("DELETE FROM outbox.queue").await;
        assert_eq!(
            queue.enqueue(std::slice::from_ref(&event)).await.unwrap(),
            [Enqueued::Duplicate]
        );
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
            .await;
    })
    .await;
}
