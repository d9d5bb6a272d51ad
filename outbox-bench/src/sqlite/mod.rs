//! `cargo xtask bench sqlite`: the figures of the queue in a SQLite file.

mod enqueue;
mod file;
mod plain;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use clap::Args;
use outbox_core::{
    Capabilities, DoneMode, OrderClass, Outcome, Publisher, Relay, RelayConfig, Route, StoredEvent,
};
use serde::Serialize;

use self::file::File;
use crate::{
    drain,
    pairs::{Compared, Pairs},
};

#[derive(Args)]
pub(crate) struct SqliteArgs {
    /// Events of each drain.
    #[arg(long, default_value_t = 50_000)]
    events: usize,
    /// Pairs of plain SQL and what is measured.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Lanes of the relay; the plain loop is one, as a file has one writer.
    #[arg(long, default_value_t = 2)]
    lanes: usize,
    /// Events of a batch at the most.
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// Transactions of each enqueue.
    #[arg(long, default_value_t = 2_000)]
    transactions: usize,
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    #[serde(flatten)]
    compared: Compared,
}

pub(crate) async fn run(args: SqliteArgs) -> Result<()> {
    let mut drains = Vec::new();
    for (what, done) in [
        ("drain, keep", DoneMode::Keep),
        ("drain, delete", DoneMode::Delete),
    ] {
        let mut pairs = Pairs::default();
        for number in 0..args.pairs {
            let (plain, relay) = both(number, plain(&args, done), relay(&args, done)).await?;
            pairs.push(what, plain, relay);
        }
        let compared = pairs.compared()?;
        drains.push(Row { what, compared });
    }
    let mut writes = Vec::new();
    for (what, size) in [("enqueue 1", 1), ("enqueue 100", 100)] {
        let mut pairs = Pairs::default();
        for number in 0..args.pairs {
            let plain = enqueue::plain(args.transactions, size);
            let outbox = enqueue::outbox(args.transactions, size);
            let (plain, outbox) = both(number, plain, outbox).await?;
            pairs.push(what, plain, outbox);
        }
        let compared = pairs.compared()?;
        writes.push(Row { what, compared });
    }
    print(&args, &drains, &writes);
    Ok(())
}

/// In turns, so that neither always meets what the other left behind.
async fn both(
    number: usize,
    limit: impl Future<Output = Result<f64>>,
    measured: impl Future<Output = Result<f64>>,
) -> Result<(f64, f64)> {
    if number.is_multiple_of(2) {
        let limit = limit.await?;
        Ok((limit, measured.await?))
    } else {
        let measured = measured.await?;
        Ok((limit.await?, measured))
    }
}

async fn plain(args: &SqliteArgs, done: DoneMode) -> Result<f64> {
    let file = File::filled(args.events).await?;
    let elapsed = plain::drain(&file, done, args.batch, args.events).await?;
    Ok(args.events as f64 / elapsed.as_secs_f64())
}

/// Counts what it is given, and acknowledges it at once.
#[derive(Default)]
struct Acknowledge(AtomicUsize);

#[async_trait]
impl Publisher for Acknowledge {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            ..Capabilities::default()
        }
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        self.0.fetch_add(events.len(), Ordering::Relaxed);
        events.iter().map(|_| Outcome::delivered()).collect()
    }
}

async fn relay(args: &SqliteArgs, done: DoneMode) -> Result<f64> {
    let file = File::filled(args.events).await?;
    let store = file.store(done, args.lanes).await?;
    let publisher = Arc::new(Acknowledge::default());
    let config = RelayConfig {
        batch_events_max: args.batch,
        ..RelayConfig::default()
    };
    let relay = Relay::builder(Arc::clone(&store) as _)
        .route(Route::new("default", Arc::clone(&publisher) as _))
        .config(config)
        .build()?;
    let elapsed = drain::until_empty(relay, &*store).await?;
    let sent = publisher.0.load(Ordering::Relaxed);
    ensure!(
        sent == args.events,
        "{sent} of {} events were published",
        args.events
    );
    Ok(args.events as f64 / elapsed.as_secs_f64())
}

fn print(args: &SqliteArgs, drains: &[Row], writes: &[Row]) {
    println!(
        "{} events in a SQLite file, batches of {}, by the relay with {} lanes and a publisher that acknowledges at once; limit: the same updates in a plain loop",
        args.events, args.batch, args.lanes
    );
    println!("{}", Compared::head("", "ratio"));
    for row in drains {
        println!("{}", row.compared.row(row.what));
    }
    println!(
        "enqueue, events a transaction; limit: INSERT into a table without indexes and triggers"
    );
    for row in writes {
        println!("{}", row.compared.row(row.what));
    }
    match serde_json::to_string(&[drains, writes]) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report can't be written as JSON: {error}"),
    }
}
