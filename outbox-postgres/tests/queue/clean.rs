//! Removing delivered rows: the plan, the rights, and who waits for whom.

use std::time::Duration;

use outbox_core::{CleanRequest, Cleaned, ErrorKind, Retention as _};
use outbox_postgres::{PgConfig, PgQueue};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{Db, lane, limit, with_database};

const NOW: CleanRequest = CleanRequest {
    retention: Duration::ZERO,
    dedup_retention: Duration::ZERO,
    rows_max: 500,
};

async fn clean_all(queue: &PgQueue, request: &CleanRequest) -> Cleaned {
    let mut all = Cleaned::default();
    loop {
        all = all.and(queue.clean(request).await.unwrap());
        if !all.more {
            return all;
        }
    }
}

/// Rows of this state that were delivered (or died) a while ago.
async fn rows(db: &Db, count: u32, status: &str, age: &str) {
    db.sql(&format!(
        "INSERT INTO outbox.queue
             (topic, event_type, payload_bytes, status, dedup_key, created_at, processed_at)
         SELECT 't', 'T', convert_to(repeat('x', 200), 'UTF8'), '{status}', NULL,
             now() - interval '{age}', now() - interval '{age}'
         FROM generate_series(1, {count})"
    ))
    .await;
}

async fn explain(db: &Db, statement: &str, cache_mode: &str) -> String {
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    let text = format!(
        "SET plan_cache_mode = {cache_mode};
         PREPARE cleaning (bigint, bigint, bigint, bigint) AS {statement};
         BEGIN; EXPLAIN (ANALYZE, TIMING OFF) EXECUTE cleaning (0, 2000, 0, 0); ROLLBACK"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(text))
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let lines = rows.iter().map(|row| sqlx::Row::get::<&str, _>(row, 0));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of a step, as the store completes it.
fn statement() -> String {
    let read = |name: &str| {
        let path = format!("{}/sql/{name}.sql", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    read("clean")
        .replace("{seen}", &read("clean_seen"))
        .replace("{may}", "(SELECT alone FROM cleaner)")
        .replace("{old}", "")
        .replace("{schema}", "\"outbox\"")
}

/// With settings of its own, for a pooler may drop ours: a step reads what it may remove, by the
/// primary key, with and without statistics.
#[tokio::test]
async fn a_step_reads_no_more_than_its_rows() {
    with_database(async |db| {
        db.queue().await;
        db.sql("ALTER TABLE outbox.queue SET (autovacuum_enabled = off);
                ALTER TABLE outbox.dedup SET (autovacuum_enabled = off);
                INSERT INTO outbox.dedup SELECT 'k' || n, gen_random_uuid(), now() - interval '1 day'
                FROM generate_series(1, 50000) n")
            .await;
        rows(db, 20_000, "done", "1 day").await;
        rows(db, 60_000, "pending", "1 day").await;
        for when in ["before", "after"] {
            for cache_mode in ["force_generic_plan", "force_custom_plan"] {
                let plan = explain(db, &statement(), cache_mode).await;
                assert!(!plan.contains("Seq Scan"), "{when}, {cache_mode}:\n{plan}");
                assert!(!plan.contains("Sort"), "{when}, {cache_mode}:\n{plan}");
                let many = plan.lines().filter(|line| {
                    let rows = line.split("actual rows=").nth(1);
                    let rows = rows.and_then(|rest| rest.split(['.', ' ']).next());
                    rows.is_some_and(|rows| rows.parse::<u64>().unwrap() > 2_000)
                });
                assert_eq!(many.count(), 0, "{when}, {cache_mode}:\n{plan}");
                assert!(plan.contains("dedup_created"), "{when}, {cache_mode}:\n{plan}");
            }
            db.sql("ANALYZE outbox.queue; ANALYZE outbox.dedup").await;
        }
    })
    .await;
}

/// Writers, claims, settles and other cleaners go on while a step has not committed, and a step waits
/// for nobody who holds a row.
#[tokio::test]
async fn cleanup_lock_nobody_waits() {
    with_database(async |db| {
        let queue = db.queue().await;
        rows(db, 10, "done", "1 hour").await;
        db.fill(5).await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(2)).await.unwrap();

        // A cleaner that stands still with all its rows deleted.
        let mut standing = db.pool.begin().await.unwrap();
        let rows = sqlx::query(AssertSqlSafe(statement()))
            .bind(0_i64)
            .bind(500_i64)
            .bind(0_i64)
            .bind(0_i64)
            .fetch_one(&mut *standing)
            .await
            .unwrap();
        assert_eq!(sqlx::Row::get::<i64, _>(&rows, "events"), 10);
        let others = async {
            db.fill(3).await;
            assert_eq!(lane.claim(limit(10)).await.unwrap().events.len(), 6);
            let all = crate::support::all(&batch, &outbox_core::Verdict::Done);
            assert_eq!(lane.settle(batch.token, &all).await.unwrap().applied, 2);
            let told = queue.clean(&NOW).await.unwrap();
            assert!(told.busy && told.is_empty(), "{told:?}");
        };
        tokio::time::timeout(Duration::from_secs(10), others)
            .await
            .expect("nobody waits");
        standing.rollback().await.unwrap();

        // A person who looks at delivered rows and goes for coffee.
        let mut person = db.pool.begin().await.unwrap();
        sqlx::raw_sql("SELECT FROM outbox.queue WHERE id IN (2, 5) FOR SHARE")
            .execute(&mut *person)
            .await
            .unwrap();
        let step = tokio::time::timeout(Duration::from_secs(10), queue.clean(&NOW));
        assert_eq!(
            step.await.expect("a step waits for nobody").unwrap().events,
            10
        );
        person.rollback().await.unwrap();
        assert_eq!(clean_all(&queue, &NOW).await.events, 2);
        assert_eq!(db.count("processing").await, 6);
    })
    .await;
}

/// Steps go through the table by id, to the rows that are young, and no step begins at the front.
#[tokio::test]
async fn a_round_goes_on_where_the_last_step_ended() {
    with_database(async |db| {
        let queue = db.queue().await;
        rows(db, 700, "failed", "2 days").await;
        rows(db, 700, "done", "2 days").await;
        rows(db, 2_000, "done", "1 hour").await;
        let request = CleanRequest {
            retention: Duration::from_secs(24 * 3600),
            ..NOW
        };
        let mut steps = Vec::new();
        loop {
            let step = queue.clean(&request).await.unwrap();
            steps.push(step.events);
            if !step.more {
                break;
            }
        }
        assert_eq!(
            steps,
            [0, 300, 400, 0],
            "and nothing of the young ones is looked at"
        );
        // The next round meets what was delivered meanwhile at the front.
        db.sql("UPDATE outbox.queue SET status = 'done' WHERE id <= 100")
            .await;
        assert_eq!(clean_all(&queue, &request).await.events, 100);
        assert_eq!(db.count("failed").await, 600);
        assert_eq!(db.count("done").await, 2_000);
    })
    .await;
}

/// What SQL wrote is no reason to fail or to forget: a done row without a time counts from its last
/// change, one that is done for ever is, and ids below zero are rows as others.
#[tokio::test]
async fn rows_of_sql_writers_are_cleaned_too() {
    with_database(async |db| {
        let queue = db.queue().await;
        db.sql(
            "INSERT INTO outbox.queue (id, topic, event_type, status, processed_at, created_at) VALUES
                 (-7, 't', 'T', 'done', NULL, '-infinity'), (9, 't', 'T', 'done', 'infinity', now()),
                 (8, 't', 'T', 'done', '-infinity', 'infinity'), (6, 't', 'T', 'pending', now(), now())",
        )
        .await;
        let hour = CleanRequest { retention: Duration::from_secs(3600), ..NOW };
        assert_eq!(queue.removable(&hour).await.unwrap().events, 1);
        assert_eq!(clean_all(&queue, &hour).await.events, 1);
        assert_eq!(clean_all(&queue, &NOW).await.events, 1);
        assert_eq!(db.number("SELECT sum(id)::bigint FROM outbox.queue").await, 15);
    })
    .await;
}

/// A role that may relay and not delete is told what it lacks.
#[tokio::test]
async fn a_role_without_the_right_to_delete_is_told_so() {
    with_database(async |db| {
        db.queue().await;
        rows(db, 3, "done", "1 hour").await;
        let role = format!("{}_relay", db.name);
        db.sql(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'x';
             GRANT USAGE ON SCHEMA outbox TO {role};
             GRANT SELECT ON outbox.migration TO {role};
             GRANT SELECT, UPDATE ON outbox.queue TO {role}"
        ))
        .await;
        let url = crate::failures::url_of(db, &role, "x");
        let queue = PgQueue::connect(PgConfig::new(url)).await.unwrap();
        let lane = lane(&queue, "w").await;
        let claimed = lane.claim(limit(1)).await;
        let refused = queue.clean(&NOW).await.unwrap_err();
        db.sql(&format!(
            "GRANT DELETE ON outbox.queue TO {role};
             GRANT SELECT, UPDATE, DELETE ON outbox.dedup TO {role}"
        ))
        .await;
        let cleaned = queue.clean(&NOW).await;
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
            .await;
        claimed.unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unauthorized);
        assert!(
            refused.to_string().contains("SELECT, UPDATE and DELETE"),
            "{refused}"
        );
        assert_eq!(cleaned.unwrap().events, 3);
    })
    .await;
}
