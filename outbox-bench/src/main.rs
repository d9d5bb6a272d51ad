//! Benchmarks with what limits them measured beside them in the same run. Started by
//! `cargo xtask bench NAME`, which starts the servers.

#![allow(
    clippy::cast_precision_loss,
    reason = "figures of a benchmark are far below 2^52"
)]

mod brokers;
mod claim;
mod clean;
mod drain;
mod fill;
mod idle;
mod limit;
mod memory;
mod pairs;
mod publish;
mod queue;
mod routes;
mod setup;
mod sqlite;
mod stats;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    about = "Benchmarks of the outbox; those on servers need the variables of `cargo xtask services env`"
)]
struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// What a claim takes on a table of five million rows, beside one with the ready rows only.
    Claim(claim::ClaimArgs),
    /// What writers feel while delivered rows are removed, beside while they are not.
    Clean(clean::CleanArgs),
    /// Each publisher alone, beside the bare driver that it is made of.
    Publish(publish::PublishArgs),
    /// The queue layout on PostgreSQL, published to Redis Streams: drain, memory, idle latency.
    Queue(queue::QueueArgs),
    /// Four routes to four brokers, one of which is down: what that costs the others.
    Routes(routes::RoutesArgs),
    /// A SQLite file: drain by the relay and enqueue, each beside plain SQL on the same file.
    Sqlite(sqlite::SqliteArgs),
}

fn main() -> Result<()> {
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            match args.benchmark {
                Benchmark::Claim(args) => claim::run(args).await,
                Benchmark::Clean(args) => clean::run(args).await,
                Benchmark::Publish(args) => publish::run(args).await,
                Benchmark::Queue(args) => queue::run(args).await,
                Benchmark::Routes(args) => routes::run(args).await,
                Benchmark::Sqlite(args) => sqlite::run(args).await,
            }
        })
}
