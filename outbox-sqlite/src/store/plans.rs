//! Which ways through the file the statements of a claim take, beside a million delivered rows.

use std::collections::BTreeMap;

use outbox_core::{Store as _, TopicPattern, TopicSet};
use sqlx::{
    Row as _, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{SqliteQueue, flights, keys, select, topics::Scope};
use crate::SqliteConfig;

/// A step of a plan, and the one that it is a part of.
struct Step {
    text: String,
    within: String,
}

impl Step {
    /// Whether it reads the table of this name.
    fn reads(&self, name: &str) -> bool {
        self.text.split(' ').nth(1) == Some(name)
    }
}

async fn plan(
    connection: &mut SqliteConnection,
    query: Query<'_, Sqlite, SqliteArguments>,
) -> Vec<Step> {
    let rows = query.fetch_all(connection).await.unwrap();
    let texts: BTreeMap<i64, String> = rows
        .iter()
        .map(|row| (row.get("id"), row.get("detail")))
        .collect();
    let step = |row: &SqliteRow| Step {
        text: row.get("detail"),
        within: texts
            .get(&row.get::<i64, _>("parent"))
            .cloned()
            .unwrap_or_default(),
    };
    rows.iter().map(step).collect()
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
                let all: Vec<&str> = steps.iter().map(|step| &*step.text).collect();
                let all = format!("analyzed {analyzed}:\n{}", all.join("\n"));
                assert!(all.contains(index), "not by {index}, {all}");
                for step in &steps {
                    let reads_events = ["outbox_queue", "q", "p", "s", "f"]
                        .iter()
                        .any(|name| step.reads(name));
                    assert!(
                        !reads_events || step.text.contains("INDEX outbox_"),
                        "reads the table, {all}"
                    );
                    assert!(!step.text.contains("TEMP B-TREE"), "sorts, {all}");
                    // Where the stream begins is the same for all rows.
                    assert!(
                        !["s", "f"].iter().any(|name| step.reads(name))
                            || step.within.starts_with("SCALAR SUBQUERY"),
                        "asks for each row, {all}"
                    );
                }
                let past = steps
                    .iter()
                    .filter(|step| step.reads("s") || step.reads("f"));
                let expected = if index == "outbox_parked" { 2 } else { 0 };
                assert_eq!(past.count(), expected, "{all}");
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
