//! The planner's choice, which must not depend on statistics or on how a statement is prepared.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{Db, lane, limit, with_database};

/// The text of a claim or takeover, as the store completes it.
fn statement(name: &str) -> String {
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

/// What the server does for a claim of 500, with settings of its own: a pooler may drop ours.
async fn plan(db: &Db, name: &str, cache_mode: &str, begin: &str) -> String {
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    let text = statement(name);
    let prepare = format!(
        "SET plan_cache_mode = {cache_mode};
         PREPARE taking (bigint, bigint, text, uuid, bigint, bigint, bigint, bigint, bigint) AS {text}"
    );
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut connection)
        .await
        .unwrap();
    let explain = format!(
        "BEGIN; EXPLAIN (ANALYZE, TIMING OFF)
         EXECUTE taking (500, 4000000, 'x', gen_random_uuid(), 30000000, 900000, {begin}); ROLLBACK"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_all(&mut connection)
        .await
        .unwrap();
    rows.iter()
        .map(|row| sqlx::Row::get::<&str, _>(row, 0))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Sorting a claim is fine, reading or sorting the backlog is not.
async fn assert_plans(db: &Db, when: &str) {
    // From the front, and from a mark an hour ago.
    let mark = "(extract(epoch FROM now() - timestamptz '2000-01-01 01:00:00+00') * 1000000)::bigint, 5, NULL";
    for (cache_mode, begin) in [
        ("force_generic_plan", "NULL, NULL, NULL"),
        ("force_generic_plan", mark),
        ("force_generic_plan", "NULL, NULL, 3600000000"),
        ("force_custom_plan", "NULL, NULL, NULL"),
        ("force_custom_plan", mark),
        ("force_custom_plan", "NULL, NULL, 3600000000"),
    ] {
        let plan = plan(db, "claim", cache_mode, begin).await;
        let scan = plan
            .lines()
            .find(|line| line.contains("queue_pending"))
            .unwrap_or_default();
        assert!(
            scan.contains("Index Scan using queue_pending") && scan.contains("rows=500 "),
            "{when}, {cache_mode}:\n{plan}"
        );
        assert!(plan.contains("queue_pkey"), "{when}, {cache_mode}:\n{plan}");
        assert!(
            !plan.contains("Seq Scan on queue"),
            "{when}, {cache_mode}:\n{plan}"
        );
    }
}

/// Fills the table without telling the planner: done, due, and scheduled rows.
async fn backlog(db: &Db, done: u32, due: u32, scheduled: u32) {
    let (last_due, all) = (done + due, done + due + scheduled);
    db.sql(&format!(
        "ALTER TABLE outbox.queue SET (autovacuum_enabled = off);
         INSERT INTO outbox.queue (topic, event_type, payload_bytes, status, next_attempt_at)
         SELECT 't', 'T', convert_to(repeat('x', 300), 'UTF8'),
             CASE WHEN n <= {done} THEN 'done' ELSE 'pending' END,
             CASE WHEN n > {last_due} THEN now() + interval '1 day' ELSE now() - interval '1 minute' END
         FROM generate_series(1, {all}) n"
    ))
    .await;
}

#[tokio::test]
async fn skip_locked_plan_claims_read_what_they_take() {
    for (done, due, scheduled) in [(0, 120_000, 0), (110_000, 2_000, 20_000), (100_000, 600, 0)] {
        with_database(async |db| {
            let queue = db.queue().await;
            backlog(db, done, due, scheduled).await;
            let mix = format!("{done} done, {due} due, {scheduled} scheduled");
            assert_plans(db, &format!("{mix}, before ANALYZE")).await;
            db.sql("ANALYZE outbox.queue").await;
            assert_plans(db, &format!("{mix}, after ANALYZE")).await;
            let batch = lane(&queue, "w").await.claim(limit(500)).await.unwrap();
            assert_eq!((batch.events.len(), batch.more), (500, true));
        })
        .await;
    }
}

#[tokio::test]
async fn skip_locked_plan_takeovers_read_expired_leases_only() {
    with_database(async |db| {
        let queue = db.queue().await;
        backlog(db, 60_000, 60_000, 0).await;
        let lane = lane(&queue, "w").await;
        for _ in 0..4 {
            lane.claim(limit(500)).await.unwrap();
        }
        for when in ["before ANALYZE", "after ANALYZE"] {
            let plan = plan(db, "reclaim", "force_custom_plan", "NULL, NULL, NULL").await;
            assert!(plan.contains("queue_processing"), "{when}:\n{plan}");
            assert!(!plan.contains("Seq Scan on queue"), "{when}:\n{plan}");
            db.sql("ANALYZE outbox.queue").await;
        }
    })
    .await;
}
