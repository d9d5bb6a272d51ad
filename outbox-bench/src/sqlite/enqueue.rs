//! What a writer pays for events: beside the same values in a table of its own.

use std::time::Instant;

use anyhow::{Result, ensure};
use outbox_core::{Enqueue as _, Event};
use outbox_sqlite::SqliteOutbox;
use sqlx::{Connection as _, SqliteConnection};

use super::file::File;
use crate::fill::event;

const TABLE: &str =
    "CREATE TABLE plain (id INTEGER PRIMARY KEY, event_id TEXT, topic TEXT, event_type TEXT,
    event_version INTEGER, aggregate_type TEXT, aggregate_id TEXT, content_type TEXT, headers TEXT,
    payload BLOB) STRICT";
const INSERT: &str =
    "INSERT INTO plain (event_id, topic, event_type, event_version, aggregate_type, aggregate_id,
        content_type, headers, payload)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// Events a second by the API, so many a transaction.
pub(crate) async fn outbox(transactions: usize, size: usize) -> Result<f64> {
    let file = File::empty().await?;
    let mut conn = file.connection().await?;
    let outbox = SqliteOutbox::new();
    let events = events(size)?;
    let started = Instant::now();
    for _ in 0..transactions {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        outbox.enqueue_all(&mut tx, &events).await?;
        tx.commit().await?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    rate(conn, "outbox_queue", transactions * size, elapsed).await
}

/// Events a second by plain SQL.
pub(crate) async fn plain(transactions: usize, size: usize) -> Result<f64> {
    let file = File::empty().await?;
    let mut conn = file.connection().await?;
    sqlx::raw_sql(TABLE).execute(&mut conn).await?;
    let events = events(size)?;
    let started = Instant::now();
    for _ in 0..transactions {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        for event in &events {
            insert(&mut tx, event).await?;
        }
        tx.commit().await?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    rate(conn, "plain", transactions * size, elapsed).await
}

async fn insert(conn: &mut SqliteConnection, event: &Event) -> Result<()> {
    sqlx::query(INSERT)
        .bind(event.id().to_string())
        .bind(event.topic())
        .bind(event.event_type())
        .bind(i64::from(event.event_version()))
        .bind(event.aggregate_type())
        .bind(event.aggregate_id())
        .bind(event.content_type())
        .bind(event.headers().to_json().to_string())
        .bind(event.payload().map(|payload| payload.to_vec()))
        .execute(conn)
        .await?;
    Ok(())
}

fn events(size: usize) -> Result<Vec<Event>> {
    (0..size).map(|n| event("t", n)).collect()
}

/// The rate, when all of them are there.
async fn rate(
    mut conn: SqliteConnection,
    table: &'static str,
    events: usize,
    seconds: f64,
) -> Result<f64> {
    let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    let rows: i64 = sqlx::query_scalar(count).fetch_one(&mut conn).await?;
    ensure!(
        usize::try_from(rows)? == events,
        "{rows} rows for {events} events"
    );
    conn.close().await?;
    Ok(events as f64 / seconds)
}
