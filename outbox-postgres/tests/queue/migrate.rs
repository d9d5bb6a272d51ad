use outbox_core::{ErrorKind, Migrated, Store as _};
use outbox_postgres::{PgQueue, migrations};

use crate::support::with_database;

const VERSION: i32 = 2;
const MADE: Migrated = Migrated {
    from: 0,
    to: VERSION,
    also: None,
};
const FOUND: Migrated = Migrated {
    from: VERSION,
    to: VERSION,
    also: None,
};

#[tokio::test(flavor = "multi_thread")]
async fn two_migrators_at_once_both_succeed() {
    with_database(async |db| {
        let mut migrators = Vec::new();
        for _ in 0..6 {
            let queue = PgQueue::connect(db.config()).await.unwrap();
            migrators.push(tokio::spawn(async move { queue.migrate().await }));
        }
        let mut made = 0;
        for migrator in migrators {
            let migrated = migrator.await.unwrap().unwrap();
            assert_eq!(migrated.to, VERSION);
            made += usize::from(migrated.from == 0);
        }
        assert_eq!(made, 1, "one made the schema, the others found it");
        let versions = db.number("SELECT count(*) FROM outbox.migration").await;
        assert_eq!(versions, i64::from(VERSION));
    })
    .await;
}

#[tokio::test]
async fn other_versions_are_refused() {
    with_database(async |db| {
        let queue = PgQueue::connect(db.config()).await.unwrap();
        assert_eq!(
            queue.check().await.unwrap_err().kind(),
            ErrorKind::SchemaMissing
        );
        assert_eq!(queue.migrate().await.unwrap(), MADE);
        assert_eq!(queue.migrate().await.unwrap(), FOUND);
        queue.check().await.unwrap();

        db.sql("INSERT INTO outbox.migration VALUES (3, 'of the future')")
            .await;
        assert_eq!(
            queue.check().await.unwrap_err().kind(),
            ErrorKind::SchemaNewer
        );
        assert_eq!(
            queue.migrate().await.unwrap_err().kind(),
            ErrorKind::SchemaNewer
        );

        db.sql("UPDATE outbox.migration SET version = version - 3")
            .await;
        assert_eq!(
            queue.check().await.unwrap_err().kind(),
            ErrorKind::SchemaMissing
        );
        db.sql(
            "DELETE FROM outbox.migration; INSERT INTO outbox.migration VALUES (-1, 'of the past')",
        )
        .await;
        assert_eq!(
            queue.check().await.unwrap_err().kind(),
            ErrorKind::SchemaOlder
        );
    })
    .await;
}

#[tokio::test]
async fn a_failed_migration_leaves_nothing() {
    with_database(async |db| {
        // The name of an index is taken, so the script fails in its middle.
        db.sql("CREATE SCHEMA outbox; CREATE TABLE outbox.queue_failed ()")
            .await;
        let queue = PgQueue::connect(db.config()).await.unwrap();
        queue.migrate().await.unwrap_err();
        assert_eq!(
            db.text("SELECT to_regclass('outbox.queue')::text").await,
            None
        );
        db.sql("DROP TABLE outbox.queue_failed").await;
        assert_eq!(queue.migrate().await.unwrap(), MADE);
    })
    .await;
}

#[tokio::test]
async fn printed_migrations_do_the_same() {
    with_database(async |db| {
        for migration in migrations("Büro-2").unwrap() {
            db.sql(&migration.sql).await;
        }
        let mut config = db.config();
        config.schema = "Büro-2".to_owned();
        let queue = PgQueue::connect(config).await.unwrap();
        queue.check().await.unwrap();
        assert_eq!(queue.migrate().await.unwrap(), FOUND);
    })
    .await;
}

#[tokio::test]
async fn a_role_without_rights_is_told_so() {
    with_database(async |db| {
        let role = format!("{}_poor", db.name);
        db.sql(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'p@ss:w/ord%21'"
        ))
        .await;
        let url = crate::failures::url_of(db, &role, "p%40ss%3Aw%2Ford%2521");
        let queue = PgQueue::connect(outbox_postgres::PgConfig::new(url))
            .await
            .unwrap();
        let migrate = queue.migrate().await.unwrap_err();
        db.queue().await;
        let check = queue.check().await.unwrap_err();
        // An administrator makes the schema, the role makes the tables.
        db.sql(&format!(
            "DROP SCHEMA outbox CASCADE; CREATE SCHEMA outbox AUTHORIZATION {role}"
        ))
        .await;
        let migrated = queue.migrate().await;
        db.sql("DROP SCHEMA outbox CASCADE").await;
        db.sql(&format!("DROP ROLE {role}")).await;
        assert_eq!(migrate.kind(), ErrorKind::Unauthorized, "{migrate}");
        assert_eq!(check.kind(), ErrorKind::Unauthorized, "{check}");
        assert_eq!(migrated.unwrap(), MADE);
    })
    .await;
}

/// Whoever waits for a table's lock keeps all later writers waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_does_not_stop_writers_behind_a_long_transaction() {
    with_database(async |db| {
        db.sql(&migrations("outbox").unwrap()[0].sql).await;
        db.sql("INSERT INTO outbox.queue (topic, event_type) VALUES ('t', 'Old')")
            .await;
        let mut long = db.pool.begin().await.unwrap();
        sqlx::raw_sql("INSERT INTO outbox.queue (topic, event_type) VALUES ('t', 'Long')")
            .execute(&mut *long)
            .await
            .unwrap();
        let queue = PgQueue::connect(db.config()).await.unwrap();
        let migrator = tokio::spawn(async move { queue.migrate().await });
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.queue'::regclass";
        while db.number(waits).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        // Ends only because the migration steps back.
        db.sql("INSERT INTO outbox.queue (topic, event_type) VALUES ('t', 'Meanwhile')")
            .await;
        assert!(!migrator.is_finished());
        long.commit().await.unwrap();
        let migrated = migrator.await.unwrap().unwrap();
        assert_eq!(migrated, Migrated { from: 1, ..FOUND });
        assert_eq!(db.number("SELECT count(*) FROM outbox.queue").await, 3);
        db.queue().await;
    })
    .await;
}
