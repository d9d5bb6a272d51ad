//! `cargo xtask bench clean`: what writers feel while delivered rows are removed, beside what they
//! feel while they are not. Case cleanup-lock.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use outbox_core::{CleanRequest, Enqueue as _, Event, Retention as _};
use outbox_postgres::{DoneMode, PgOutbox, PgQueue};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    setup::Servers,
    stats::{Spread, percentile},
};

#[derive(Args)]
pub(crate) struct CleanArgs {
    /// Delivered rows when a round begins; more than a round can remove.
    #[arg(long, default_value_t = 500_000)]
    done: u32,
    /// Inserts a second, by all writers together.
    #[arg(long, default_value_t = 2_000)]
    rate: u32,
    /// Writers, each with a connection.
    #[arg(long, default_value_t = 8)]
    writers: u32,
    /// How long the writers of a round write.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds with cleaning, and as many without.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rows of a step; the relay's own by default.
    #[arg(long, default_value_t = CleanRequest::ROWS_MAX)]
    rows: u32,
    /// Pause behind a step, in times of what the step took; the relay's own by default.
    #[arg(long, default_value_t = 3)]
    rest: u32,
}

#[derive(Serialize)]
struct Round {
    inserts: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Rows removed while the writers wrote.
    cleaned: u64,
}

#[derive(Serialize)]
struct Report {
    without: Vec<Round>,
    with: Vec<Round>,
    /// Of each pair of neighbouring rounds.
    p50_ratio: Spread,
    p99_ratio: Spread,
}

pub(crate) async fn run(args: CleanArgs) -> Result<()> {
    let servers = Servers::prepare().await?;
    let measured = measure(&args, &servers).await;
    servers.remove().await?;
    print(&args, &measured?);
    Ok(())
}

async fn measure(args: &CleanArgs, servers: &Servers) -> Result<Report> {
    let store = servers.store(DoneMode::Keep, 1).await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for number in 0..args.rounds {
        // In turns, so that neither kind always meets what the other left behind.
        for cleans in [number % 2 == 1, number % 2 == 0] {
            fill(args, servers).await?;
            let round = round(args, servers, cleans.then(|| Arc::clone(&store))).await?;
            if cleans {
                with.push(round);
            } else {
                without.push(round);
            }
        }
    }
    let ratios = |of: fn(&Round) -> f64| {
        let pairs = with.iter().zip(&without);
        let ratios: Vec<f64> = pairs
            .map(|(with, without)| of(with) / of(without))
            .collect();
        Spread::of(&ratios).context("no rounds")
    };
    Ok(Report {
        p50_ratio: ratios(|round| round.p50_ms)?,
        p99_ratio: ratios(|round| round.p99_ms)?,
        without,
        with,
    })
}

/// The same table for every round: nothing but delivered rows, all of them on disk.
async fn fill(args: &CleanArgs, servers: &Servers) -> Result<()> {
    let mut conn = PgConnection::connect(&servers.postgres).await?;
    for text in [
        "TRUNCATE outbox.queue".to_owned(),
        format!(
            "INSERT INTO outbox.queue (topic, event_type, payload_bytes, status, processed_at)
             SELECT 'bench', 'T', convert_to(repeat('x', 300), 'UTF8'), 'done', now()
             FROM generate_series(1, {})",
            args.done
        ),
        "VACUUM ANALYZE outbox.queue".to_owned(),
        "CHECKPOINT".to_owned(),
    ] {
        sqlx::raw_sql(AssertSqlSafe(text))
            .execute(&mut conn)
            .await?;
    }
    Ok(())
}

async fn round(args: &CleanArgs, servers: &Servers, store: Option<Arc<PgQueue>>) -> Result<Round> {
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let request = CleanRequest {
        retention: Duration::ZERO,
        rows_max: args.rows,
        ..CleanRequest::default()
    };
    let cleaner = tokio::spawn(clean(store, request, args.rest, until));
    let mut writers = JoinSet::new();
    for _ in 0..args.writers {
        let conn = PgConnection::connect(&servers.postgres).await?;
        let tick = Duration::from_secs(1) * args.writers / args.rate;
        writers.spawn(write(conn, tick, until));
    }
    let mut latencies = Vec::new();
    while let Some(writer) = writers.join_next().await {
        latencies.extend(writer??);
    }
    latencies.sort_by(f64::total_cmp);
    let at = |percent| percentile(&latencies, percent).context("no inserts");
    Ok(Round {
        inserts: latencies.len(),
        p50_ms: at(50)?,
        p99_ms: at(99)?,
        max_ms: at(100)?,
        cleaned: cleaner.await??,
    })
}

/// As a relay does: a step, and a pause.
async fn clean(
    store: Option<Arc<PgQueue>>,
    request: CleanRequest,
    rest: u32,
    until: Instant,
) -> Result<u64> {
    let Some(store) = store else { return Ok(0) };
    let mut cleaned = 0;
    while Instant::now() < until {
        let began = Instant::now();
        let step = store.clean(&request).await?;
        cleaned += step.events;
        sleep(began.elapsed() * rest).await;
    }
    Ok(cleaned)
}

/// One event a transaction at a steady rate: what each took, in milliseconds.
async fn write(mut conn: PgConnection, tick: Duration, until: Instant) -> Result<Vec<f64>> {
    let outbox = PgOutbox::new("outbox")?;
    let mut ticks = interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut latencies = Vec::new();
    while Instant::now() < until {
        ticks.tick().await;
        // Not due before the round is over: deliveries are no part of it.
        let event = Event::new("bench", "T")
            .deliver_after(Duration::from_secs(3600))
            .bytes(vec![b'x'; 300])?;
        let began = Instant::now();
        let mut transaction = conn.begin().await?;
        outbox.enqueue(&mut transaction, &event).await?;
        transaction.commit().await?;
        latencies.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(latencies)
}

fn print(args: &CleanArgs, report: &Report) {
    println!(
        "{} inserts/s by {} writers beside {} delivered rows, {} rounds of {} s each",
        args.rate, args.writers, args.done, args.rounds, args.seconds
    );
    println!(
        "{:<10} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "cleaning", "inserts", "p50 ms", "p99 ms", "max ms", "rows/s"
    );
    for (name, rounds) in [("without", &report.without), ("with", &report.with)] {
        for round in rounds {
            println!(
                "{:<10} {:>8} {:>10.2} {:>10.2} {:>10.2} {:>10}",
                name,
                round.inserts,
                round.p50_ms,
                round.p99_ms,
                round.max_ms,
                round.cleaned / args.seconds.max(1)
            );
        }
    }
    for (name, ratio) in [("p50", &report.p50_ratio), ("p99", &report.p99_ratio)] {
        println!(
            "ratio of {name}, with to without: median {:.2} ({:.2} to {:.2}), bar for p99: 1.2",
            ratio.median, ratio.min, ratio.max
        );
    }
    match serde_json::to_string(report) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report can't be written as JSON: {error}"),
    }
}
