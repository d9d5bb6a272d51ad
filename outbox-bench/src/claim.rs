//! `cargo xtask bench claim`: what a claim costs beside millions of rows that are not its business,
//! and beside none. Case skip-locked-plan.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use outbox_core::{AcquireRequest, ClaimLimit, Lane, RelayConfig, Store, TopicSet, WorkerId};
use outbox_postgres::{DoneMode, PgQueue};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{limit::settle, setup::Servers, stats::percentile};

/// The schemas of the table with all rows, and of the one that only ever has ready ones.
const FULL: &str = "outbox";
const READY_ONLY: &str = "outbox_ready";

#[derive(Args)]
pub(crate) struct ClaimArgs {
    /// Rows that are done.
    #[arg(long, default_value_t = 4_900_000)]
    done: u32,
    /// Rows that are due in a day.
    #[arg(long, default_value_t = 90_000)]
    scheduled: u32,
    /// Rows of a failed topic, put off for an hour.
    #[arg(long, default_value_t = 9_000)]
    blocked: u32,
    /// Rows that are ready when a round begins.
    #[arg(long, default_value_t = 1_000)]
    ready: u32,
    /// Rounds on each table, before ANALYZE and after it.
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Lanes that claim at once.
    #[arg(long, default_value_t = 8)]
    lanes: usize,
    /// Events of a claim at the most.
    #[arg(long, default_value_t = 50)]
    batch: usize,
}

#[derive(Serialize)]
struct Latency {
    claims: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

#[derive(Serialize)]
struct Compared {
    statistics: &'static str,
    ready_only: Latency,
    full: Latency,
    p50_ratio: f64,
    p99_ratio: f64,
}

pub(crate) async fn run(args: ClaimArgs) -> Result<()> {
    let servers = Servers::prepare().await?;
    let measured = measure(&args, &servers).await;
    servers.remove().await?;
    print(&args, &measured?);
    Ok(())
}

async fn measure(args: &ClaimArgs, servers: &Servers) -> Result<Vec<Compared>> {
    let full = servers.store_in(FULL, DoneMode::Keep, args.lanes).await?;
    let ready_only = servers
        .store_in(READY_ONLY, DoneMode::Keep, args.lanes)
        .await?;
    let mut conn = PgConnection::connect(&servers.postgres).await?;
    for schema in [FULL, READY_ONLY] {
        // The planner learns of the rows when the benchmark says so.
        let off = format!("ALTER TABLE {schema}.queue SET (autovacuum_enabled = off)");
        sql(&mut conn, &off).await?;
    }
    fill(&mut conn, args).await?;
    let mut found = vec![compare(args, &mut conn, &full, &ready_only, "before ANALYZE").await?];
    for schema in [FULL, READY_ONLY] {
        sql(&mut conn, &format!("VACUUM ANALYZE {schema}.queue")).await?;
    }
    found.push(compare(args, &mut conn, &full, &ready_only, "after ANALYZE").await?);
    Ok(found)
}

async fn sql(conn: &mut PgConnection, text: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(text)).execute(conn).await?;
    Ok(())
}

/// Everything but the ready rows.
async fn fill(conn: &mut PgConnection, args: &ClaimArgs) -> Result<()> {
    let (done, scheduled, blocked) = (args.done, args.scheduled, args.blocked);
    for (count, columns, values) in [
        (done, "status, processed_at", "'done', now()"),
        (scheduled, "next_attempt_at", "now() + interval '1 day'"),
        (
            blocked,
            "attempts, first_failed_at, next_attempt_at",
            "3, now(), now() + interval '1 hour' + n * interval '1 ms'",
        ),
    ] {
        let insert = format!(
            "INSERT INTO {FULL}.queue (event_id, topic, event_type, payload, {columns})
             SELECT '00000000-0000-0000-0000-000000000001', 'bench', 'T', '{{\"n\": 1}}', {values}
             FROM generate_series(1, {count}) n"
        );
        sql(conn, &insert).await?;
    }
    sql(conn, "CHECKPOINT").await
}

/// Alternating rounds, so that both tables meet the same moods of the machine.
async fn compare(
    args: &ClaimArgs,
    conn: &mut PgConnection,
    full: &Arc<PgQueue>,
    ready_only: &Arc<PgQueue>,
    statistics: &'static str,
) -> Result<Compared> {
    let (full, ready_only) = (lanes(full).await?, lanes(ready_only).await?);
    let (mut beside_all, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.extend(round(args, conn, READY_ONLY, &ready_only).await?);
        beside_all.extend(round(args, conn, FULL, &full).await?);
    }
    let (ready_only, full) = (latency(&alone)?, latency(&beside_all)?);
    Ok(Compared {
        statistics,
        p50_ratio: full.p50_ms / ready_only.p50_ms,
        p99_ratio: full.p99_ms / ready_only.p99_ms,
        ready_only,
        full,
    })
}

async fn lanes(store: &Arc<PgQueue>) -> Result<Vec<Arc<dyn Lane>>> {
    let (topics, worker) = (TopicSet::all(), WorkerId("bench".to_owned()));
    let request = AcquireRequest {
        route: "bench",
        topics: &topics,
        worker: &worker,
        held: &[],
    };
    Ok(store.acquire(&request).await?.lanes)
}

/// Writes the ready rows and lets all lanes claim and settle them at once.
async fn round(
    args: &ClaimArgs,
    conn: &mut PgConnection,
    schema: &str,
    lanes: &[Arc<dyn Lane>],
) -> Result<Vec<Duration>> {
    let insert = format!(
        "INSERT INTO {schema}.queue (topic, event_type, key, payload_bytes)
         SELECT 'bench', 'T', 'k' || n, convert_to(repeat('x', 300), 'UTF8')
         FROM generate_series(1, {}) n",
        args.ready
    );
    sql(conn, &insert).await?;
    let limit = ClaimLimit {
        events: args.batch,
        bytes: RelayConfig::default().batch_bytes_max,
    };
    let work = lanes
        .iter()
        .map(|lane| tokio::spawn(work(Arc::clone(lane), limit)));
    let (mut latencies, mut claimed) = (Vec::new(), 0);
    for lane in futures::future::join_all(work).await {
        let (of_lane, events) = lane??;
        latencies.extend(of_lane);
        claimed += events;
    }
    anyhow::ensure!(
        u32::try_from(claimed) == Ok(args.ready),
        "{claimed} events claimed"
    );
    Ok(latencies)
}

/// Claims until nothing is left: what each claim took, and how many events came.
async fn work(lane: Arc<dyn Lane>, limit: ClaimLimit) -> Result<(Vec<Duration>, usize)> {
    let (mut latencies, mut claimed) = (Vec::new(), 0);
    loop {
        let started = Instant::now();
        let batch = lane.claim(limit).await?;
        latencies.push(started.elapsed());
        if batch.is_empty() {
            return Ok((latencies, claimed));
        }
        claimed += batch.events.len();
        settle(&*lane, &batch).await?;
    }
}

fn latency(latencies: &[Duration]) -> Result<Latency> {
    let mut sorted: Vec<f64> = latencies.iter().map(|l| l.as_secs_f64() * 1000.0).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |percent| percentile(&sorted, percent).context("no claims");
    Ok(Latency {
        claims: sorted.len(),
        p50_ms: at(50)?,
        p99_ms: at(99)?,
        max_ms: at(100)?,
    })
}

fn print(args: &ClaimArgs, found: &[Compared]) {
    println!(
        "a claim of {} by {} lanes at once, {} ready rows, alone (the limit) and beside {} done, {} scheduled, {} put off",
        args.batch, args.lanes, args.ready, args.done, args.scheduled, args.blocked
    );
    println!(
        "{:<16} {:<10} {:>8} {:>10} {:>10} {:>10}",
        "statistics", "rows", "claims", "p50 ms", "p99 ms", "max ms"
    );
    for compared in found {
        for (rows, latency) in [("ready", &compared.ready_only), ("all", &compared.full)] {
            println!(
                "{:<16} {:<10} {:>8} {:>10.2} {:>10.2} {:>10.2}",
                compared.statistics,
                rows,
                latency.claims,
                latency.p50_ms,
                latency.p99_ms,
                latency.max_ms
            );
        }
        println!(
            "{:<16} ratio p50 {:.2}, p99 {:.2} (bar: p99 beside all rows ≤ 20 ms)",
            compared.statistics, compared.p50_ratio, compared.p99_ratio
        );
    }
    match serde_json::to_string(found) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report can't be written as JSON: {error}"),
    }
}
