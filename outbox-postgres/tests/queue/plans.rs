//! The planner's choice, which must not depend on statistics.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{Db, lane, limit, with_database};

/// What the server says about the statements that a claim runs.
async fn plan_of_claims(db: &Db) -> String {
    let text = outbox_postgres_sql("claim");
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    // As the driver runs it after a while: one plan for all values.
    sqlx::raw_sql("SET plan_cache_mode = force_generic_plan; SET jit = off")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "PREPARE claim (bigint, bigint, text, uuid, bigint, bigint) AS {text}"
    )))
    .execute(&mut connection)
    .await
    .unwrap();
    let explain = "EXPLAIN (ANALYZE, BUFFERS) EXECUTE claim (500, 4000000, 'x', gen_random_uuid(), 30000000, 900000)";
    let lines: Vec<String> = sqlx::query_scalar(explain)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    lines.join("\n")
}

fn outbox_postgres_sql(name: &str) -> String {
    let read = |name: &str| {
        let path = format!("{}/sql/{name}.sql", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let mut text = read(name);
    for (mark, part) in [
        ("{topics}", String::new()),
        ("{size}", read("size")),
        ("{documents}", read("documents")),
        ("{event}", read("event")),
        ("{bytes_max}", "$6".to_owned()),
        ("{schema}", "outbox".to_owned()),
        ("{text(", "(".to_owned()),
        (")}", ")".to_owned()),
    ] {
        text = text.replace(mark, &part);
    }
    text
}

fn assert_plan(plan: &str) {
    assert!(plan.contains("Index Scan using queue_pending"), "{plan}");
    assert!(plan.contains("queue_pkey"), "{plan}");
    assert!(!plan.contains("Seq Scan"), "{plan}");
    // Sorting a claim is fine, sorting the backlog is not.
    let scanned = plan
        .lines()
        .find(|line| line.contains("queue_pending"))
        .unwrap();
    assert!(scanned.contains("rows=500 "), "{plan}");
}

#[tokio::test]
async fn skip_locked_plan_claims_read_due_rows_only() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.sql("ALTER TABLE outbox.queue SET (autovacuum_enabled = off)").await;
        db.sql(
            "INSERT INTO outbox.queue (topic, event_type, payload, status, next_attempt_at)
             SELECT 't', 'T', '{}', CASE WHEN n <= 120000 THEN 'done' ELSE 'pending' END,
                 CASE WHEN n > 130000 THEN now() + interval '1 day' ELSE now() - interval '1 minute' END
             FROM generate_series(1, 150000) n",
        )
        .await;
        assert_plan(&plan_of_claims(db).await);
        db.sql("ANALYZE outbox.queue").await;
        assert_plan(&plan_of_claims(db).await);
        let batch = lane(&queue, "w").await.claim(limit(500)).await.unwrap();
        assert_eq!((batch.events.len(), batch.more), (500, true));
        db.sql("VACUUM ANALYZE outbox.queue").await;
        assert_plan(&plan_of_claims(db).await);
    })
    .await;
}
