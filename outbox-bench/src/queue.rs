//! `cargo xtask bench queue`: the figures of the queue layout.

use anyhow::{Context, Result};
use clap::Args;
use outbox_core::{ClaimLimit, RelayConfig};
use outbox_postgres::DoneMode;
use serde::Serialize;

use crate::{
    drain,
    fill::fill,
    idle, limit, memory,
    pairs::{Compared, Pairs},
    setup::Servers,
    stats::percentile,
};

const TOPIC: &str = "bench-orders";

#[derive(Args)]
pub(crate) struct QueueArgs {
    /// Events of each drain.
    #[arg(long, default_value_t = 200_000)]
    events: usize,
    /// Pairs of (limit, relay) for each done mode.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Lanes of the relay and of the limit.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Events of a batch at the most.
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// Events that the program drains while its memory is watched; 0 leaves this out.
    #[arg(long, default_value_t = 1_000_000)]
    memory_events: usize,
    /// Events written one by one into an idle outbox; 0 leaves this out.
    #[arg(long, default_value_t = 300)]
    idle_events: usize,
}

#[derive(Serialize)]
struct Drain {
    done: &'static str,
    events: usize,
    #[serde(flatten)]
    compared: Compared,
}

#[derive(Serialize, Default)]
struct Report {
    drains: Vec<Drain>,
    idle_ms: Option<Idle>,
    relay_peak_mib: Option<f64>,
}

#[derive(Serialize)]
struct Idle {
    p50: f64,
    p95: f64,
    p99: f64,
}

pub(crate) async fn run(args: QueueArgs) -> Result<()> {
    let servers = Servers::prepare().await?;
    let measured = measure(&args, &servers).await;
    servers.remove().await?;
    print(&measured?);
    Ok(())
}

async fn measure(args: &QueueArgs, servers: &Servers) -> Result<Report> {
    let mut report = Report::default();
    for (done, name) in [(DoneMode::Keep, "keep"), (DoneMode::Delete, "delete")] {
        if args.pairs > 0 {
            report.drains.push(drains(args, servers, done, name).await?);
        }
    }
    if args.idle_events > 0 {
        let store = servers.store(DoneMode::Keep, args.workers).await?;
        fill(&servers.postgres, TOPIC, 0).await?;
        servers.flush_redis().await?;
        let found = idle::latencies(
            &store,
            &servers.postgres,
            &servers.redis,
            TOPIC,
            args.idle_events,
        )
        .await?;
        let mut sorted: Vec<f64> = found
            .iter()
            .map(|latency| latency.as_secs_f64() * 1000.0)
            .collect();
        sorted.sort_by(f64::total_cmp);
        let at = |percent| percentile(&sorted, percent).context("no latencies");
        report.idle_ms = Some(Idle {
            p50: at(50)?,
            p95: at(95)?,
            p99: at(99)?,
        });
    }
    if args.memory_events > 0 {
        let program = memory::build_program().await?;
        let store = servers.store(DoneMode::Keep, args.workers).await?;
        fill(&servers.postgres, TOPIC, args.memory_events).await?;
        servers.flush_redis().await?;
        let peak = memory::peak(&program, &store, &servers.postgres, &servers.redis).await?;
        report.relay_peak_mib = Some(peak as f64 / f64::from(1 << 20));
    }
    Ok(report)
}

/// Alternating pairs, so that both halves meet the same moods of the machine.
async fn drains(
    args: &QueueArgs,
    servers: &Servers,
    done: DoneMode,
    name: &'static str,
) -> Result<Drain> {
    let store = servers.store(done, args.workers).await?;
    let claim = ClaimLimit {
        events: args.batch,
        bytes: RelayConfig::default().batch_bytes_max,
    };
    let mut pairs = Pairs::default();
    for _ in 0..args.pairs {
        fill(&servers.postgres, TOPIC, args.events).await?;
        let limit = args.events as f64 / limit::drain(&store, claim).await?.as_secs_f64();
        fill(&servers.postgres, TOPIC, args.events).await?;
        servers.flush_redis().await?;
        let elapsed = drain::drain(&store, &servers.redis, TOPIC, args.batch, args.events).await?;
        let relay = args.events as f64 / elapsed.as_secs_f64();
        pairs.push(name, limit, relay);
    }
    Ok(Drain {
        done: name,
        events: args.events,
        compared: pairs.compared()?,
    })
}

fn print(report: &Report) {
    println!("drain, PostgreSQL (queue layout) → Redis Streams, median (min–max)");
    println!("{}", Compared::head("done", "ratio (bar ≥ 0.6)"));
    for drain in &report.drains {
        let name = format!("{}, {}", drain.done, drain.events);
        println!("{}", drain.compared.row(&name));
    }
    if let Some(idle) = &report.idle_ms {
        println!(
            "idle commit → in the stream, polling alone: p50 {:.1} ms (bar < 15), p95 {:.1} ms, p99 {:.1} ms",
            idle.p50, idle.p95, idle.p99
        );
    }
    if let Some(peak) = report.relay_peak_mib {
        println!(
            "peak memory of `outbox relay` while draining: {peak:.1} MiB (bar < 64 MB = 61 MiB)"
        );
    }
    match serde_json::to_string(report) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report can't be written as JSON: {error}"),
    }
}
