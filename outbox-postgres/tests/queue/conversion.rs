//! A plain table becomes one of partitions: what it keeps.

use outbox_core::{Enqueue as _, Event, Retention as _, Store as _, Verdict};
use outbox_postgres::{Partitions, PgConfig, PgOutbox, PgQueue};
use sqlx::{Connection as _, postgres::PgPoolOptions};

use crate::{
    failures::url_of,
    support::{Db, all, lane, limit, with_database},
};

/// All that a table is for those who use it, a line each, but for its primary key and the names of
/// partitions. What rows are stored in is told once where all partitions are alike.
const SHAPE: &str = "
WITH queue AS (SELECT * FROM pg_class WHERE oid = 'outbox.queue'::regclass),
stored AS (
    SELECT * FROM queue WHERE relkind = 'r'
    UNION ALL SELECT leaf.* FROM pg_inherits JOIN pg_class AS leaf ON leaf.oid = inhrelid
    WHERE inhparent = 'outbox.queue'::regclass
),
ids AS (SELECT * FROM pg_class WHERE oid = pg_get_serial_sequence('outbox.queue', 'id')::regclass),
shape (line) AS (
    SELECT concat_ws(' ', 'column', attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
        attstorage, attcompression, pg_get_expr(adbin, adrelid), col_description(attrelid, attnum))
    FROM queue JOIN pg_attribute ON attrelid = oid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped
    UNION ALL SELECT concat_ws(' ', 'stored column', attname, format_type(atttypid, atttypmod), attnotnull,
        attstorage, attcompression, pg_get_expr(adbin, adrelid))
    FROM stored JOIN pg_attribute ON attrelid = oid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped
    UNION ALL SELECT concat_ws(' ', 'check', conname, pg_get_constraintdef(c.oid), obj_description(c.oid, 'pg_constraint'))
    FROM queue JOIN pg_constraint AS c ON conrelid = queue.oid WHERE contype = 'c'
    UNION ALL SELECT concat_ws(' ', 'stored check', stored_checks) FROM (
        SELECT string_agg(conname || ' ' || pg_get_constraintdef(c.oid), '; ' ORDER BY conname) AS stored_checks
        FROM stored JOIN pg_constraint AS c ON conrelid = stored.oid WHERE contype = 'c' GROUP BY stored.oid) AS checks
    UNION ALL SELECT concat_ws(' ', 'index', replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON '),
        obj_description(indexrelid, 'pg_class'))
    FROM queue JOIN pg_index ON indrelid = oid WHERE NOT indisprimary
    UNION ALL SELECT concat_ws(' ', 'stored index', stored_indexes) FROM (
        SELECT string_agg(part, '; ' ORDER BY part) AS stored_indexes
        FROM stored JOIN pg_index ON indrelid = oid,
            regexp_replace(pg_get_indexdef(indexrelid), '.* USING ', '') AS part
        WHERE NOT indisprimary GROUP BY stored.oid) AS indexes
    UNION ALL SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid), tgenabled, obj_description(t.oid, 'pg_trigger'))
    FROM queue JOIN pg_trigger AS t ON tgrelid = queue.oid WHERE NOT tgisinternal
    UNION ALL SELECT concat_ws(' ', 'stored trigger', stored_triggers) FROM (
        SELECT string_agg(concat_ws(' ', tgname, tgenabled), '; ' ORDER BY tgname) AS stored_triggers
        FROM stored JOIN pg_trigger AS t ON tgrelid = stored.oid
        WHERE NOT tgisinternal AND tgtype & 1 = 1 GROUP BY stored.oid) AS triggers
    UNION ALL SELECT concat_ws(' ', 'stored', relkind, relpersistence, pg_get_userbyid(relowner), options)
    FROM stored, LATERAL (SELECT string_agg(option, ',' ORDER BY option) AS options
        FROM unnest(reloptions || ARRAY(SELECT 'toast.' || unnest(toast.reloptions)
            FROM pg_class AS toast WHERE toast.oid = stored.reltoastrelid)) AS option) AS with_options
    UNION ALL SELECT concat_ws(' ', 'rights', name, pg_get_userbyid(nullif(grantee, 0)), privilege_type, is_grantable)
    FROM (
        SELECT 'table' AS name, coalesce(relacl, acldefault('r', relowner)) AS acl FROM queue
        UNION ALL SELECT 'sequence', coalesce(relacl, acldefault('s', relowner)) FROM ids
        UNION ALL SELECT 'dedup', coalesce(relacl, acldefault('r', relowner)) FROM pg_class WHERE oid = 'outbox.dedup'::regclass
        UNION ALL SELECT attname::text, attacl FROM queue JOIN pg_attribute ON attrelid = oid WHERE attacl IS NOT NULL
    ) AS acls, aclexplode(acl)
    UNION ALL SELECT concat_ws(' ', 'table', pg_get_userbyid(relowner), obj_description(oid, 'pg_class'),
        relrowsecurity, relforcerowsecurity, relreplident) FROM queue
    UNION ALL SELECT concat_ws(' ', 'sequence', relname, pg_get_userbyid(relowner), obj_description(oid, 'pg_class'),
        s.data_type, s.start_value, s.increment_by, s.cache_size, s.last_value)
    FROM ids JOIN pg_sequences AS s ON schemaname = 'outbox' AND sequencename = relname
)
SELECT string_agg(DISTINCT line, E'\\n' ORDER BY line) FROM shape";

pub(crate) async fn shape(db: &Db) -> Vec<String> {
    let text = db.text(SHAPE).await.unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Fails with the lines that only one of them has.
#[track_caller]
pub(crate) fn assert_alike(found: &[String], expected: &[String], what: &str) {
    let only = |these: &[String], others: &[String]| -> Vec<String> {
        let mut these = these.to_vec();
        these.retain(|line| !others.contains(line));
        these
    };
    let (new, lost) = (only(found, expected), only(expected, found));
    assert!(
        new.is_empty() && lost.is_empty(),
        "{what}: new {new:#?}, lost {lost:#?}"
    );
}

fn config(db: &Db, partitions: Partitions) -> PgConfig {
    PgConfig {
        partitions: Some(partitions),
        ..db.config()
    }
}

pub(crate) async fn daily(db: &Db) -> PgQueue {
    PgQueue::connect(config(db, Partitions::Daily))
        .await
        .unwrap()
}

/// Runs with roles that exist for one test: an owner, a relay and a writer.
async fn with_roles(db: &Db, body: impl AsyncFnOnce([String; 3])) {
    use futures::FutureExt as _;
    let roles = ["owner", "relay", "writer"].map(|role| format!("{}_{role}", db.name));
    for role in &roles {
        db.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'x'"))
            .await;
    }
    let body = std::panic::AssertUnwindSafe(body(roles.clone()));
    let result = body.catch_unwind().await;
    for role in &roles {
        db.sql(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))
            .await;
    }
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// What users may have done to the table, as far as it survives.
async fn adorn(db: &Db, [owner, relay, writer]: &[String; 3]) {
    db.sql(&format!(
        "GRANT ALL ON SCHEMA outbox TO {owner};
         ALTER TABLE outbox.queue OWNER TO {owner};
         GRANT USAGE ON SCHEMA outbox TO {relay}, {writer};
         GRANT SELECT, UPDATE, DELETE ON outbox.queue TO {relay} WITH GRANT OPTION;
         GRANT SELECT ON outbox.queue TO PUBLIC;
         REVOKE TRUNCATE, REFERENCES ON outbox.queue FROM {owner};
         GRANT INSERT, UPDATE (topic) ON outbox.queue TO {writer};
         GRANT SELECT (event_id) ON outbox.queue TO {writer} WITH GRANT OPTION;
         GRANT USAGE, SELECT ON SEQUENCE outbox.queue_id_seq TO {writer};
         GRANT SELECT, UPDATE, DELETE ON outbox.dedup TO {relay}, {owner};
         SET ROLE {relay};
         GRANT SELECT ON outbox.queue TO {writer};
         RESET ROLE;
         ALTER TABLE outbox.queue SET (fillfactor = 60, toast.autovacuum_vacuum_threshold = 77);
         ALTER TABLE outbox.queue ADD COLUMN tenant text NOT NULL DEFAULT 'none' CHECK (tenant <> '');
         ALTER TABLE outbox.queue ALTER payload_bytes SET STORAGE EXTERNAL;
         ALTER TABLE outbox.queue ALTER event_type SET COMPRESSION pglz;
         ALTER SEQUENCE outbox.queue_id_seq INCREMENT 5 CACHE 3;
         CREATE INDEX of_a_user ON outbox.queue (lower(topic)) WHERE tenant <> 'none';
         CREATE FUNCTION outbox.of_a_user() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER of_a_user AFTER INSERT ON outbox.queue FOR EACH ROW EXECUTE FUNCTION outbox.of_a_user();
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON outbox.queue DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW WHEN (NEW.tenant = 'none') EXECUTE FUNCTION outbox.of_a_user();
         CREATE TRIGGER disabled BEFORE UPDATE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION outbox.of_a_user();
         CREATE TRIGGER whole AFTER UPDATE ON outbox.queue FOR EACH STATEMENT EXECUTE FUNCTION outbox.of_a_user();
         ALTER TABLE outbox.queue DISABLE TRIGGER disabled, ENABLE ALWAYS TRIGGER of_a_user, ENABLE REPLICA TRIGGER whole;
         COMMENT ON TABLE outbox.queue IS 'on the table, it''s';
         COMMENT ON COLUMN outbox.queue.topic IS 'on a column';
         COMMENT ON CONSTRAINT queue_status ON outbox.queue IS 'on a check';
         COMMENT ON INDEX outbox.queue_pending IS 'on an index';
         COMMENT ON TRIGGER queue_touch ON outbox.queue IS 'on a trigger';
         COMMENT ON SEQUENCE outbox.queue_id_seq IS 'on the sequence'"
    ))
    .await;
}

/// What somebody has made of the table stays, also for partitions that are made later.
#[tokio::test]
async fn what_hangs_on_a_table_survives_its_conversion() {
    with_database(async |db| {
        db.queue().await;
        with_roles(db, async |roles| {
            adorn(db, &roles).await;
            db.sql("SELECT nextval('outbox.queue_id_seq')").await;
            let plain = shape(db).await;
            daily(db).await.migrate().await.unwrap();
            let converted = shape(db).await;
            assert_alike(&converted, &plain, "converted");

            // Those whose rights these are use them.
            let [_, relay, writer] = &roles;
            for (role, statement) in [
                (writer, "INSERT INTO outbox.queue (topic, event_type, dedup_key) VALUES ('t', 'T', 'k') RETURNING event_id"),
                (relay, "UPDATE outbox.queue SET status = 'done', processed_at = now()"),
                (relay, "DELETE FROM outbox.queue"),
                (relay, "DELETE FROM outbox.dedup"),
            ] {
                db.sql(&format!("SET ROLE {role}; {statement}; RESET ROLE")).await;
            }
            // A partition that a later cleaner makes is the owner's too, whoever the cleaner is.
            let last = "SELECT max(inhrelid::regclass::text) FROM pg_inherits
                        WHERE inhparent = 'outbox.queue'::regclass AND inhrelid <> 'outbox.queue_default'::regclass";
            let last = db.text(last).await.unwrap();
            db.sql(&format!("DROP TABLE {last}")).await;
            let by_root = PgQueue::connect(db.config()).await.unwrap();
            by_root.clean(&outbox_core::CleanRequest::default()).await.unwrap();
            let now = shape(db).await;
            assert_alike(&without_position(now), &without_position(plain), "later");
            let [owner, ..] = &roles;
            let of_owner = PgConfig::new(url_of(db, owner, "x"));
            let cleaned = PgQueue::connect(of_owner).await.unwrap();
            let cleaned = cleaned.clean(&outbox_core::CleanRequest::default()).await;
            assert_eq!(cleaned.unwrap().notice, None);
        })
        .await;
    })
    .await;
}

/// Where the sequence is changes with every row.
fn without_position(shape: Vec<String>) -> Vec<String> {
    let of_sequence = |line: String| match line.rsplit_once(' ') {
        Some((line, _)) if line.starts_with("sequence") => line.to_owned(),
        _ => line,
    };
    shape.into_iter().map(of_sequence).collect()
}

/// A table that was plain for a while is as one that was made of partitions at once; and this one is
/// as a plain one.
#[tokio::test]
async fn a_converted_table_is_as_one_made_of_partitions_and_as_a_plain_one() {
    with_database(async |fresh| {
        daily(fresh).await.migrate().await.unwrap();
        with_database(async |db| {
            db.queue().await;
            let plain = shape(db).await;
            daily(db).await.migrate().await.unwrap();
            let converted = shape(db).await;
            assert_alike(&converted, &shape(fresh).await, "as a fresh one");
            assert_alike(&converted, &plain, "as a plain one");
            let key = "SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
                       WHERE conrelid = 'outbox.queue'::regclass AND contype = 'p'";
            assert_eq!(
                db.text(key).await.unwrap(),
                "queue_pkey PRIMARY KEY (id, created_at)"
            );
        })
        .await;
    })
    .await;
}

/// Ids go on where they were: a log of old ones stays unambiguous.
#[tokio::test]
async fn ids_go_on_after_a_conversion() {
    with_database(async |db| {
        db.queue().await;
        db.fill(7).await;
        db.sql("DELETE FROM outbox.queue").await;
        daily(db).await.migrate().await.unwrap();
        db.fill(1).await;
        assert_eq!(db.number("SELECT id FROM outbox.queue").await, 8);
    })
    .await;
}

/// As the documentation says: by hand, for want of a migration.
#[tokio::test]
async fn other_partitions_are_made_once_the_dated_ones_are_dropped() {
    with_database(async |db| {
        daily(db).await.migrate().await.unwrap();
        db.sql(
            "DO $$ BEGIN EXECUTE (SELECT string_agg('DROP TABLE ' || inhrelid::regclass, ';') FROM pg_inherits
             WHERE inhparent = 'outbox.queue'::regclass AND inhrelid <> 'outbox.queue_default'::regclass); END $$",
        )
        .await;
        let queue = PgQueue::connect(config(db, Partitions::Monthly)).await.unwrap();
        queue.migrate().await.unwrap();
        queue.check_settings().await.unwrap();
        let months = "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhrelid
                      WHERE inhparent = 'outbox.queue'::regclass AND relname ~ '^queue_\\d{4}_\\d{2}$'";
        assert_eq!(db.number(months).await, 3);
    })
    .await;
}

/// Whoever wrote and claimed before goes on, on the same connection and by the statements prepared on it.
#[tokio::test]
async fn sessions_of_writers_and_relays_outlive_a_conversion() {
    with_database(async |db| {
        let queue = db.queue_with(|config| config.pool_size = 1).await;
        let outbox = PgOutbox::new("outbox").unwrap();
        let mut connection = db.pool.acquire().await.unwrap();
        let lane = lane(&queue, "w").await;
        for round in 0..3 {
            let mut tx = connection.begin().await.unwrap();
            let event = Event::new("t", "T").bytes("null").unwrap();
            outbox.enqueue(&mut *tx, &event).await.unwrap();
            tx.commit().await.unwrap();
            let batch = lane.claim(limit(10)).await.unwrap();
            assert_eq!(batch.events.len(), 1, "round {round}");
            let settled = lane.settle(batch.token, &all(&batch, &Verdict::Done)).await;
            assert_eq!(settled.unwrap().applied, 1, "round {round}");
            db.sql("DELETE FROM outbox.queue").await;
            daily(db).await.migrate().await.unwrap();
        }
    })
    .await;
}

/// Without storage settings there are none to keep.
#[tokio::test]
async fn a_table_without_storage_settings_is_converted() {
    with_database(async |db| {
        db.queue().await;
        db.sql(
            "DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE outbox.queue RESET (%s)', string_agg(option_name, ', '))
             FROM pg_class, pg_options_to_table(reloptions) WHERE oid = 'outbox.queue'::regclass); END $$",
        )
        .await;
        let plain = shape(db).await;
        daily(db).await.migrate().await.unwrap();
        assert_alike(&shape(db).await, &plain, "without settings");
    })
    .await;
}

/// Whoever gives the connections may want another isolation level; looking at an older snapshot the
/// migrator would take the table for empty.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_row_that_is_committed_while_the_conversion_waits_is_kept() {
    with_database(async |db| {
        db.queue().await;
        let isolation = ("default_transaction_isolation", "repeatable read");
        let options = db.pool.connect_options().as_ref().clone();
        let pool = PgPoolOptions::new()
            .connect_with(options.options([isolation]))
            .await
            .unwrap();
        let queue = PgQueue::with_pool(pool, config(db, Partitions::Daily)).unwrap();
        let mut writer = db.pool.begin().await.unwrap();
        sqlx::raw_sql("INSERT INTO outbox.queue (topic, event_type) VALUES ('t', 'Late')")
            .execute(&mut *writer)
            .await
            .unwrap();
        let migrator = tokio::spawn(async move { queue.migrate().await });
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.queue'::regclass";
        while db.number(waits).await == 0 {
            assert!(!migrator.is_finished());
        }
        writer.commit().await.unwrap();
        let migrated = migrator.await.unwrap();
        assert_eq!(db.count("pending").await, 1, "{migrated:?}");
        assert!(migrated.unwrap_err().to_string().contains("holds rows"));
    })
    .await;
}
