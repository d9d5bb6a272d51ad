//! The table as one of partitions: how it is made, kept and emptied.

use std::time::Duration;

use outbox_core::{
    CleanRequest, Cleaned, DeadFilter, DeadLetters as _, ErrorKind, Inspect as _, Retention as _,
    Store as _, Verdict,
};
use outbox_postgres::{Partitions, PgQueue};
use tokio::time::{Instant, timeout};

use crate::{
    explained::{ExplainingServer, Ran},
    support::{Db, all, lane, limit, with_database},
};

const DAY: CleanRequest = CleanRequest {
    retention: Duration::from_secs(24 * 3600),
    dedup_retention: Duration::from_secs(24 * 3600),
    rows_max: 500,
};
const LEAVES: &str = "SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'outbox.queue'::regclass";

async fn daily(db: &Db) -> PgQueue {
    db.queue_with(|config| config.partitions = Some(Partitions::Daily))
        .await
}

/// As another process, which looks after partitions at once.
async fn clean(db: &Db) -> Cleaned {
    let queue = PgQueue::connect(db.config()).await.unwrap();
    let mut all = Cleaned::default();
    loop {
        all = all.and(queue.clean(&DAY).await.unwrap());
        if !all.more {
            return all;
        }
    }
}

/// What there is, whatever the days are called: today's is `+0`.
async fn leaves(db: &Db) -> String {
    let named = "SELECT string_agg(CASE WHEN c.relname ~ '\\d$'
            THEN to_char(to_date(right(c.relname, 10), 'YYYY_MM_DD') - (now() AT TIME ZONE 'UTC')::date, 'SG9999') ELSE c.relname END,
            ' ' ORDER BY c.relname)
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'outbox.queue'::regclass";
    let text = db.text(named).await.unwrap();
    text.split_whitespace().collect::<String>()
}

/// Rows of so many days ago, delivered so many hours ago.
async fn rows(db: &Db, count: u32, status: &str, days: u32, hours: u32) {
    db.sql(&format!(
        "INSERT INTO outbox.queue (topic, event_type, status, created_at, processed_at)
         SELECT 't', 'T', '{status}',
             date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '{days} days' + interval '1 hour',
             now() - interval '{hours} hours'
         FROM generate_series(1, {count})"
    ))
    .await;
}

/// Everything but the partitions is as in the plain table, also what somebody has added to it.
#[tokio::test]
async fn an_empty_table_becomes_one_of_partitions_and_keeps_what_it_has() {
    let shape = "SELECT string_agg(part, E'\\n' ORDER BY part) FROM (
            SELECT concat_ws(' ', column_name, data_type, is_nullable, column_default, is_identity)
            FROM information_schema.columns WHERE table_schema = 'outbox' AND table_name = 'queue'
            UNION ALL SELECT replace(pg_get_indexdef(indexrelid), 'ON ONLY', 'ON') FROM pg_index
            WHERE indrelid = 'outbox.queue'::regclass AND NOT indisprimary
            UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'outbox.queue'::regclass
            UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conrelid = 'outbox.queue'::regclass AND contype = 'c'
        ) AS shape (part)";
    with_database(async |db| {
        db.queue().await;
        db.sql("CREATE INDEX of_a_user ON outbox.queue (topic)").await;
        let plain = db.text(shape).await.unwrap();
        daily(db).await;
        assert_eq!(db.text(shape).await.unwrap(), plain);
        assert_eq!(leaves(db).await, "+0+1+2+3queue_default");
        let settings = "SELECT count(DISTINCT c.reloptions) FROM pg_inherits i
            JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'outbox.queue'::regclass AND c.reloptions::text LIKE '%fillfactor=70%'";
        assert_eq!(db.number(settings).await, 1);
        db.fill(3).await;
        let today = "SELECT count(*) FROM outbox.queue WHERE tableoid <> 'outbox.queue_default'::regclass";
        assert_eq!(db.number(today).await, 3);

        // Now the database's state counts, whatever a configuration says.
        db.queue().await;
        let monthly = db
            .queue_with(|config| config.partitions = Some(Partitions::Monthly))
            .await;
        assert_eq!(monthly.clean(&DAY).await.unwrap().notice, None);
        assert_eq!(clean(db).await.notice, None);
        assert_eq!(leaves(db).await, "+0+1+2+3queue_default");
    })
    .await;
}

#[tokio::test]
async fn a_table_with_rows_is_left_as_it_is_with_a_reason() {
    with_database(async |db| {
        db.queue().await;
        db.fill(1).await;
        let mut config = db.config();
        config.partitions = Some(Partitions::Monthly);
        let queue = PgQueue::connect(config).await.unwrap();
        let error = queue.migrate().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("drain"), "{error}");
        assert_eq!(db.count("pending").await, 1);
        db.sql("DELETE FROM outbox.queue").await;
        queue.migrate().await.unwrap();
        let leaves = db.text(LEAVES).await.unwrap();
        assert_eq!(leaves.split(' ').count(), 4, "two months ahead: {leaves}");
    })
    .await;
}

/// A table that is not as the setting says is told of, with what ends that. Without a setting any is right.
#[tokio::test]
async fn a_table_of_other_partitions_than_the_setting_is_told() {
    use Partitions::{Daily, Monthly, None as Plain};
    let told = async |db: &Db, setting| {
        let mut config = db.config();
        config.partitions = setting;
        let queue = PgQueue::connect(config).await.unwrap();
        queue.check().await.unwrap();
        let checked = queue.check_settings().await;
        checked.map_err(|error| (error.kind(), error.to_string()))
    };
    let refused = async |db: &Db, setting, kind, parts: &[&str]| {
        let (found, text) = told(db, Some(setting)).await.unwrap_err();
        assert_eq!(found, kind, "{text}");
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    };
    let (older, wrong) = (ErrorKind::SchemaOlder, ErrorKind::Configuration);
    with_database(async |db| {
        db.queue().await;
        for setting in [None, Some(Plain)] {
            assert_eq!(told(db, setting).await, Ok(()));
        }
        for (setting, name) in [(Daily, "value=daily"), (Monthly, "value=monthly")] {
            refused(db, setting, older, &["empty", name, "table=none"]).await;
        }
        db.fill(1).await;
        refused(db, Daily, older, &["holds rows", "drain"]).await;
        db.sql("DELETE FROM outbox.queue; CREATE VIEW looks AS SELECT FROM outbox.queue")
            .await;
        refused(db, Daily, older, &["in_the_way=view looks", "remove it"]).await;
        db.sql("DROP VIEW looks").await;

        let made = also_made(db, Daily).await;
        assert_eq!(made, Some("made the empty table one of daily partitions"));
        assert_eq!(also_made(db, Daily).await, None);
        for setting in [None, Some(Daily)] {
            assert_eq!(told(db, setting).await, Ok(()));
        }
        for (setting, name) in [(Plain, "value=none"), (Monthly, "value=monthly")] {
            refused(
                db,
                setting,
                wrong,
                &["leave the setting out", name, "table=daily"],
            )
            .await;
        }
    })
    .await;
}

/// What a migration with this setting says that it did beside bringing the version up.
async fn also_made(db: &Db, partitions: Partitions) -> Option<&'static str> {
    let mut config = db.config();
    config.partitions = Some(partitions);
    let queue = PgQueue::connect(config).await.unwrap();
    queue.migrate().await.unwrap().also
}

/// An insert never fails; what came while there was no partition for it is moved, under lease or not.
#[tokio::test]
async fn i13_the_default_partition_takes_what_has_none_until_it_is_made() {
    with_database(async |db| {
        let queue = daily(db).await;
        let tomorrow = db
            .text("SELECT 'queue_' || to_char(now() AT TIME ZONE 'UTC' + interval '1 day', 'YYYY_MM_DD')")
            .await
            .unwrap();
        db.sql(&format!("DROP TABLE outbox.{tomorrow}")).await;
        db.sql(
            "INSERT INTO outbox.queue (topic, event_type, created_at)
             VALUES ('t', 'T', now() + interval '1 day'), ('t', 'T', '2020-05-05 23:59:59.999999+00'),
                 ('t', 'T', '2020-05-05 00:00:00+00'), ('t', 'T', '2020-05-06 00:00:00+00'),
                 ('t', 'T', 'infinity'), ('t', 'T', '-infinity'), ('t', 'T', now())",
        )
        .await;
        let lane = lane(&queue, "w").await;
        let batch = lane.claim(limit(7)).await.unwrap();
        assert_eq!(batch.events.len() + batch.unreadable.len(), 7);
        for _ in 0..3 {
            clean(db).await;
        }
        let strays = "SELECT count(*) FROM outbox.queue_default";
        assert_eq!(db.number(strays).await, 2, "for infinite times there is none");
        for (leaf, rows) in [(tomorrow.as_str(), 1), ("queue_2020_05_05", 2), ("queue_2020_05_06", 1)] {
            let count = format!("SELECT count(*) FROM outbox.{leaf} WHERE status = 'processing'");
            assert_eq!(db.number(&count).await, rows, "{leaf}");
        }
        let settled = lane.settle(batch.token, &all(&batch, &Verdict::Done)).await;
        assert_eq!(settled.unwrap().applied, 7);
    })
    .await;
}

/// Too many to be moved while writers wait: they stay and work, and the delivered ones go.
#[tokio::test]
async fn a_full_default_partition_is_emptied_by_cleaning_first() {
    with_database(async |db| {
        daily(db).await;
        rows(db, 2_500, "done", 9, 200).await;
        rows(db, 5, "pending", 9, 200).await;
        let cleaned = clean(db).await;
        assert_eq!(cleaned.events, 2_500);
        assert!(
            cleaned
                .notice
                .is_some_and(|notice| notice.contains("queue_default"))
        );
        assert_eq!(leaves(db).await, "+0+1+2+3queue_default");
        assert_eq!(clean(db).await.notice, None);
        assert_eq!(leaves(db).await, "-9+0+1+2+3queue_default");
        assert_eq!(db.count("pending").await, 5);
    })
    .await;
}

/// A partition goes as a whole when nothing in it is undone and its last delivery is old.
#[tokio::test]
async fn old_partitions_go_and_take_nothing_that_is_needed() {
    with_database(async |db| {
        daily(db).await;
        for day in [9, 8, 7, 6, 5, 1, 0] {
            rows(db, 1, "pending", day, 0).await;
            // Makes its partition.
            clean(db).await;
        }
        db.sql("UPDATE outbox.queue SET status = 'done', processed_at = created_at").await;
        rows(db, 4, "done", 8, 48).await;
        rows(db, 4, "done", 7, 48).await;
        rows(db, 1, "failed", 7, 48).await;
        rows(db, 4, "done", 6, 48).await;
        rows(db, 1, "done", 6, 1).await;
        db.sql("UPDATE outbox.queue SET status = 'pending', processed_at = NULL
                WHERE tableoid::regclass::text LIKE '%queue\\_20%' AND id IN (
                    SELECT min(id) FROM outbox.queue
                    WHERE created_at < now() - interval '4 days' GROUP BY tableoid ORDER BY 1 DESC LIMIT 1)")
            .await;
        let cleaned = clean(db).await;
        assert_eq!(leaves(db).await, "-7-6-5-1+0+1+2+3queue_default");
        // 9 and 8 went whole; of 7 and 6 the old rows, and one of them is pending in 5.
        assert_eq!((cleaned.partitions, cleaned.events), (2, 5 + 5));
        assert_eq!((db.count("failed").await, db.count("pending").await), (1, 1));
        // Young partitions wait for their own end, though a row of yesterday may be old enough.
        assert_eq!(db.count("done").await, 3);
        let now = CleanRequest {
            retention: Duration::ZERO,
            ..DAY
        };
        let queue = PgQueue::connect(db.config()).await.unwrap();
        assert_eq!(queue.removable(&now).await.unwrap().events, 3);
        assert_eq!(queue.clean(&now).await.unwrap().events, 3, "not kept as long as a partition");
    })
    .await;
}

/// Somebody's long transaction keeps a partition; it does not keep writers or the cleaner.
#[tokio::test]
async fn cleanup_lock_dropping_gives_up_rather_than_let_writers_wait() {
    with_database(async |db| {
        daily(db).await;
        rows(db, 1, "pending", 9, 0).await;
        clean(db).await;
        db.sql("UPDATE outbox.queue SET status = 'done', processed_at = created_at")
            .await;
        let mut long = db.pool.begin().await.unwrap();
        sqlx::raw_sql("INSERT INTO outbox.queue (topic, event_type) VALUES ('t', 'Long')")
            .execute(&mut *long)
            .await
            .unwrap();
        let began = Instant::now();
        let writing = async {
            let mut slowest = Duration::ZERO;
            while began.elapsed() < Duration::from_millis(700) {
                let one = Instant::now();
                db.fill(1).await;
                slowest = slowest.max(one.elapsed());
            }
            slowest
        };
        let both = async { tokio::join!(clean(db), writing) };
        let (cleaned, slowest) = timeout(Duration::from_secs(20), both).await.unwrap();
        assert_eq!(cleaned.partitions, 0);
        assert!(slowest < Duration::from_millis(500), "{slowest:?}");
        assert!(leaves(db).await.starts_with("-9"));
        long.commit().await.unwrap();
        rows(db, 1, "done", 9, 200).await;
        assert_eq!(clean(db).await.partitions, 1);
    })
    .await;
}

/// A row that somebody inserts into an old partition after it was found to be over stays, and so does
/// its partition: whether the drop gives up or looks again under its lock.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_row_that_comes_before_the_drop_is_kept() {
    with_database(async |db| {
        daily(db).await;
        rows(db, 1, "pending", 9, 0).await;
        clean(db).await;
        let old = "UPDATE outbox.queue SET status = 'done', processed_at = created_at";
        for _ in 0..5 {
            db.sql(old).await;
            let mut late = db.pool.begin().await.unwrap();
            sqlx::raw_sql(
                "INSERT INTO outbox.queue (topic, event_type, created_at)
                 SELECT 't', 'Late', min(created_at) FROM outbox.queue",
            )
            .execute(&mut *late)
            .await
            .unwrap();
            let queue = PgQueue::connect(db.config()).await.unwrap();
            let cleaning = tokio::spawn(async move { queue.clean(&DAY).await });
            let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            while !cleaning.is_finished() && db.number(waits).await == 0 {}
            late.commit().await.unwrap();
            assert_eq!(cleaning.await.unwrap().unwrap().partitions, 0);
            assert_eq!(db.count("pending").await, 1);
        }
        db.sql(old).await;
        assert_eq!(clean(db).await.partitions, 1);
    })
    .await;
}

/// A relay's role that does not own the table cleans rows, and the owner's purge does the rest.
#[tokio::test]
async fn partitions_of_another_owner_are_left_alone() {
    with_database(async |db| {
        daily(db).await;
        rows(db, 3, "done", 9, 200).await;
        let role = format!("{}_relay", db.name);
        db.sql(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'x';
             GRANT USAGE ON SCHEMA outbox TO {role};
             GRANT SELECT, UPDATE, DELETE ON outbox.queue, outbox.dedup TO {role}"
        ))
        .await;
        let url = crate::failures::url_of(db, &role, "x");
        let queue = PgQueue::connect(outbox_postgres::PgConfig::new(url))
            .await
            .unwrap();
        let cleaned = queue.clean(&DAY).await;
        db.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
            .await;
        let cleaned = cleaned.unwrap();
        assert_eq!(cleaned.events, 3);
        assert!(
            cleaned
                .notice
                .is_some_and(|notice| notice.contains("outbox purge"))
        );
        assert_eq!(leaves(db).await, "+0+1+2+3queue_default");
    })
    .await;
}

/// Statements come by indexes of the partitions, and none reads more than its business.
fn assert_bounded(what: &str, ran: &[Ran], rows: u64) {
    assert!(!ran.is_empty(), "{what}");
    for scan in ran.iter().flat_map(Ran::scans) {
        let by_index = matches!(scan.node.as_str(), "Index Scan" | "Index Only Scan");
        assert!(by_index && scan.rows <= rows, "{what}: {scan:?}: {ran:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn skip_locked_plan_with_partitions() {
    let server = ExplainingServer::start().await;
    let db = &server.db;
    let queue = daily(db).await;
    for day in [9, 8, 7] {
        rows(db, 20_000, "done", day, 1).await;
        db.sql(&format!(
            "CREATE TABLE outbox.queue_of_{day} (LIKE outbox.queue INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
             WITH moved AS (DELETE FROM outbox.queue_default RETURNING *) INSERT INTO outbox.queue_of_{day} SELECT * FROM moved;
             DO $$ BEGIN EXECUTE format(
                 'ALTER TABLE outbox.queue ATTACH PARTITION outbox.queue_of_{day} FOR VALUES FROM (%L) TO (%L)',
                 date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '{day} days',
                 date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '{day} days' + interval '1 day'); END $$"
        ))
        .await;
    }
    db.sql(
        "INSERT INTO outbox.queue (topic, event_type, created_at)
            SELECT 't', 'T', now() - n % 10 * interval '1 day' FROM generate_series(1, 20000) n",
    )
    .await;
    server.explain_new_sessions().await;
    queue.check().await.unwrap();
    let fresh = || async { PgQueue::connect(db.config()).await.unwrap() };
    for when in ["before ANALYZE", "after ANALYZE"] {
        let queue = fresh().await;
        let lane = lane(&queue, "w").await;
        let (batch, ran) = server.watch(lane.claim(limit(500))).await;
        let batch = batch.unwrap();
        assert_eq!(batch.events.len(), 500);
        assert_bounded(&format!("claim {when}"), &ran, 600);
        let (renewed, ran) = server.watch(lane.renew(&[batch.token])).await;
        assert!(renewed.unwrap().is_empty());
        assert_bounded(&format!("renew {when}"), &ran, 600);
        let (settled, ran) = server
            .watch(lane.settle(batch.token, &all(&batch, &Verdict::Done)))
            .await;
        assert_eq!(settled.unwrap().applied, 500);
        assert_bounded(&format!("settle {when}"), &ran, 600);
        let batch = lane.claim(limit(500)).await.unwrap();
        let dead = Verdict::Dead {
            reason: outbox_core::DeadReason::Rejected,
            note: outbox_core::FailureNote::default(),
            hold_key: false,
        };
        let (settled, ran) = server
            .watch(lane.settle(batch.token, &all(&batch, &dead)))
            .await;
        assert_eq!(settled.unwrap().applied, 500);
        assert_bounded(&format!("settle as dead {when}"), &ran, 600);
        let (requeued, ran) = server
            .watch(queue.requeue(&DeadFilter::default(), 500))
            .await;
        assert_eq!(requeued.unwrap(), 500);
        assert_bounded(&format!("requeue {when}"), &ran, 600);
        lane.claim(limit(500)).await.unwrap();
        let (released, ran) = server.watch(lane.release()).await;
        released.unwrap();
        assert_bounded(&format!("release {when}"), &ran, 600);
        let (inspected, ran) = server.watch(queue.inspect(1_000)).await;
        assert!(inspected.unwrap().pending.at_least);
        assert_bounded(&format!("inspect {when}"), &ran, 1_100);
        for retention in [Duration::ZERO, DAY.retention] {
            let request = CleanRequest { retention, ..DAY };
            let (cleaned, ran) = server.watch(fresh().await.clean(&request)).await;
            assert!(cleaned.unwrap().events > 0 || retention > Duration::ZERO);
            assert_bounded(&format!("clean {when}"), &ran, 3_000);
        }
        db.sql("ANALYZE outbox.queue").await;
    }
}
