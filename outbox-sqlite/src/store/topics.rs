//! The topics and the lane that a statement is about.

use outbox_core::{TopicPattern, TopicSet};
use sqlx::{Sqlite, query::Query, sqlite::SqliteArguments};

/// The first parameters of every statement about a lane: `?1` route, `?2` lane, `?3` lanes of the
/// route, `?4` topics and `?5` prefixes of topics as JSON, null for all.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) route: String,
    pub(crate) lane: i64,
    pub(crate) lanes: i64,
    topics: Option<String>,
    prefixes: Option<String>,
}

/// The condition on rows that goes with a [`Scope`].
macro_rules! in_scope {
    ($row:literal) => {
        concat!(
            $row, "bucket % ?3 = ?2 AND (?4 IS NULL OR ", $row,
            "topic IN (SELECT value FROM json_each(?4)) OR EXISTS (SELECT 1 FROM json_each(?5) WHERE substr(",
            $row, "topic, 1, length(value)) = value))"
        )
    };
}
pub(crate) use in_scope;

/// Nothing of the lane's stream stands before row `q`: earlier events of its key are settled or parked.
/// Where the stream begins is asked once for all rows, and only when there is one to compare.
macro_rules! stream_is_past {
    () => {
        concat!(
            "coalesce(q.id < (SELECT s.id FROM outbox_queue AS s INDEXED BY outbox_stream
                WHERE s.status = 'pending' AND s.parked IS NULL AND ",
            in_scope!("s."),
            " ORDER BY s.id LIMIT 1), TRUE)
            AND coalesce(q.id < (SELECT min(f.id) FROM outbox_queue AS f INDEXED BY outbox_processing
                WHERE f.status = 'processing' AND f.parked IS NULL AND ",
            in_scope!("f."),
            "), TRUE)"
        )
    };
}
pub(crate) use stream_is_past;

impl Scope {
    pub(crate) fn new(route: &str, lane: i64, lanes: i64, topics: &TopicSet) -> Self {
        let mut exact = Vec::new();
        let mut prefixes = Vec::new();
        for pattern in topics.patterns() {
            match pattern {
                TopicPattern::All => {}
                TopicPattern::Exact(topic) => exact.push(topic.as_str()),
                TopicPattern::Prefix(prefix) => prefixes.push(prefix.as_str()),
            }
        }
        let json =
            |list: Vec<&str>| (!topics.is_all()).then(|| serde_json::json!(list).to_string());
        Self {
            route: route.to_owned(),
            lane,
            lanes,
            topics: json(exact),
            prefixes: json(prefixes),
        }
    }

    /// A statement with these as its first five parameters.
    pub(crate) fn query<'q>(&'q self, text: &'static str) -> Query<'q, Sqlite, SqliteArguments> {
        sqlx::query(text)
            .bind(&self.route)
            .bind(self.lane)
            .bind(self.lanes)
            .bind(&self.topics)
            .bind(&self.prefixes)
    }
}
