//! Which ways through the file the statements of a claim take, beside a million delivered rows.

use outbox_core::{Store as _, TopicPattern, TopicSet};
use sqlx::{Row as _, Sqlite, SqliteConnection, query::Query, sqlite::SqliteArguments};

use super::{SqliteQueue, flights, keys, select, topics::Scope};
use crate::SqliteConfig;

/// The steps of the plan.
async fn plan(
    connection: &mut SqliteConnection,
    query: Query<'_, Sqlite, SqliteArguments>,
) -> Vec<String> {
    let rows = query.fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get("detail")).collect()
}

#[tokio::test]
async fn claims_read_their_indexes_beside_a_million_done_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let queue = SqliteQueue::connect(SqliteConfig::new(format!("sqlite:{}", path.display())))
        .await
        .unwrap();
    queue.migrate().await.unwrap();
    let mut connection = queue.0.database.connection("test").await.unwrap();
    // No work of this test is to outlive a power cut.
    let fill = "PRAGMA synchronous = OFF;
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000000)
        INSERT INTO outbox_queue (topic, event_type, key, status, processed_at)
        SELECT 't', 'T', 'key-' || (n % 1000), 'done', n FROM n;
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000)
        INSERT INTO outbox_queue (topic, event_type, key, parked, blocks, route)
        SELECT 't', 'T', 'key-' || n, 'retry', 1, 'r' FROM n;
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000)
        INSERT INTO outbox_queue (topic, event_type, key) SELECT 't', 'T', 'key-' || n FROM n;";
    sqlx::raw_sql(fill).execute(&mut *connection).await.unwrap();

    let some =
        TopicSet::new(["a".parse::<TopicPattern>().unwrap(), "t*".parse().unwrap()]).unwrap();
    for analyzed in [false, true] {
        if analyzed {
            sqlx::raw_sql("ANALYZE")
                .execute(&mut *connection)
                .await
                .unwrap();
        }
        for topics in [&TopicSet::all(), &some] {
            let scope = Scope::new("r", 0, 2, topics);
            for (text, index) in [
                (select::STREAM_EXPLAINED, "outbox_stream"),
                (select::PARKED_EXPLAINED, "outbox_parked"),
                (keys::OVERDUE_EXPLAINED, "outbox_parked"),
                (flights::OPEN_EXPLAINED, "outbox_flight_lane"),
            ] {
                let query = scope.query(text).bind(i64::MAX).bind(100);
                let steps = plan(&mut connection, query).await;
                let all = steps.join("\n");
                assert!(all.contains(index), "analyzed {analyzed}: {all}");
                for step in &steps {
                    let reads_events = step.contains("outbox_queue")
                        || [" q ", " p "]
                            .iter()
                            .any(|name| format!("{step} ").contains(name));
                    assert!(
                        !reads_events || step.contains("INDEX outbox_"),
                        "reads the table, analyzed {analyzed}: {all}"
                    );
                    assert!(
                        !step.contains("TEMP B-TREE"),
                        "sorts, analyzed {analyzed}: {all}"
                    );
                }
            }
            let found = select::select(
                &mut connection,
                &scope,
                i64::MAX,
                outbox_core::ClaimLimit {
                    events: 100,
                    bytes: usize::MAX,
                },
                select::Flying {
                    any: false,
                    suspect: false,
                },
                true,
            );
            assert_eq!(found.await.unwrap().unwrap().ids.len(), 100);
        }
    }
}
