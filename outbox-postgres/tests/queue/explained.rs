//! A server that tells of every statement how it ran it.
//!
//! `auto_explain` writes the plan that was used into the server's log, whoever sent the statement and
//! however it was prepared: what is looked at is what the store does, not a copy of its texts.

use std::{fs, path::PathBuf, time::Duration};

use outbox_testkit::{eventually, servers::Postgres};
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;

use crate::support::Db;

/// A private PostgreSQL with an empty database.
pub(crate) struct ExplainingServer {
    pub(crate) db: Db,
    log: PathBuf,
    /// Dropped last: its end ends the server.
    _server: Postgres,
}

/// A statement on the table `queue` as the server ran it.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its text and its plan.
    explained: Value,
}

/// One scan of the table `queue` or of a partition of it.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The kind of node, as `Index Scan`.
    pub(crate) node: String,
    pub(crate) index: Option<String>,
    /// Rows looked at, in all loops together: those it gave and those it threw away.
    pub(crate) rows: u64,
}

impl ExplainingServer {
    pub(crate) async fn start() -> Self {
        let server = Postgres::start_with(&[
            // Millions of rows are made for one test, and nobody misses them.
            ("fsync", "off"),
            ("full_page_writes", "off"),
            ("max_wal_size", "8GB"),
            ("shared_buffers", "256MB"),
            // The planner learns of the rows when the test says so.
            ("autovacuum", "off"),
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_format", "json"),
            ("auto_explain.log_analyze", "on"),
            ("auto_explain.log_buffers", "on"),
            ("auto_explain.log_timing", "off"),
        ])
        .expect("PostgreSQL with its extension auto_explain");
        let url = server.url();
        let pool = PgPoolOptions::new()
            .max_connections(20)
            .connect(&url)
            .await
            .unwrap();
        let name = "postgres".to_owned();
        Self {
            db: Db { pool, url, name },
            log: server.log(),
            _server: server,
        }
    }

    /// From now on new sessions have their statements explained.
    pub(crate) async fn explain_new_sessions(&self) {
        self.db
            .sql("ALTER DATABASE postgres SET auto_explain.log_min_duration = 0")
            .await;
    }

    /// Does something and gives what the server ran for it.
    pub(crate) async fn watch<T>(&self, act: impl Future<Output = T>) -> (T, Vec<Ran>) {
        let before = fs::metadata(&self.log).unwrap().len();
        let done = act.await;
        // A caller may go on before its session came to the statement's end, which writes the log.
        let idle = eventually(Duration::from_secs(30), async || {
            let busy = "SELECT count(*) FROM pg_stat_activity
                        WHERE application_name = 'outbox' AND state <> 'idle'";
            (self.db.number(busy).await == 0).then_some(())
        });
        idle.await.expect("the sessions become idle");
        let log = fs::read(&self.log).unwrap();
        let news = String::from_utf8_lossy(&log[usize::try_from(before).unwrap()..]);
        (done, ran(&news))
    }
}

/// The plans of a part of the log: JSON on tabbed lines behind a line that ends in `plan:`.
fn ran(log: &str) -> Vec<Ran> {
    let mut found = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with(" plan:") {
            continue;
        }
        let mut json = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with('\t')) {
            json.push_str(line);
            json.push('\n');
        }
        let ran = Ran {
            explained: serde_json::from_str(&json).unwrap(),
        };
        if !ran.scans().is_empty() {
            found.push(ran);
        }
    }
    found
}

impl Ran {
    /// Pages that were looked at, cached or not.
    pub(crate) fn buffers(&self) -> u64 {
        ["Shared Hit Blocks", "Shared Read Blocks"]
            .iter()
            .map(|name| number(self.root(), name))
            .sum()
    }

    pub(crate) fn scans(&self) -> Vec<Scan> {
        let scans = self.nodes().into_iter().filter(|node| {
            node["Relation Name"]
                .as_str()
                .is_some_and(|name| name.starts_with("queue"))
                && node["Node Type"].as_str() != Some("ModifyTable")
        });
        scans
            .map(|node| Scan {
                node: node["Node Type"].as_str().unwrap().to_owned(),
                index: node["Index Name"].as_str().map(str::to_owned),
                rows: given(node) + removed(node),
            })
            .collect()
    }

    /// The most rows that a node sorted or kept in windows.
    pub(crate) fn sorted(&self) -> u64 {
        let nodes = self.nodes().into_iter();
        let sorts = nodes.filter(|node| {
            let kind = node["Node Type"].as_str().unwrap_or_default();
            kind.contains("Sort") || kind == "WindowAgg"
        });
        sorts.map(given).max().unwrap_or(0)
    }

    fn root(&self) -> &Value {
        &self.explained["Plan"]
    }

    fn nodes(&self) -> Vec<&Value> {
        let mut nodes = vec![self.root()];
        let mut next = 0;
        while let Some(node) = nodes.get(next) {
            nodes.extend(node["Plans"].as_array().into_iter().flatten());
            next += 1;
        }
        nodes
    }
}

fn number(node: &Value, name: &str) -> u64 {
    node[name].as_u64().unwrap_or(0)
}

/// Counts of nodes are means over their loops.
fn given(node: &Value) -> u64 {
    number(node, "Actual Rows") * number(node, "Actual Loops")
}

fn removed(node: &Value) -> u64 {
    let names = ["Rows Removed by Filter", "Rows Removed by Index Recheck"];
    let rows: u64 = names.iter().map(|name| number(node, name)).sum();
    rows * number(node, "Actual Loops")
}
