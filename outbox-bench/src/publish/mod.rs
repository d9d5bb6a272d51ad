//! `cargo xtask bench publish`: each publisher alone, beside the bare driver that it is made of.

mod lanes;
mod outage;

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use clap::Args;
use outbox_core::{Position, RelayConfig, StoredEvent};
use outbox_postgres::PgConfig;
use serde::Serialize;
use time::OffsetDateTime;

use crate::{
    brokers::{self, Broker, Other, Window},
    fill,
    pairs::{Compared, Pairs},
};
use outage::Outage;

#[derive(Args)]
pub(crate) struct PublishArgs {
    /// Measure these brokers only, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = brokers::NAMES)]
    only: Vec<String>,
    /// Events of each half of a pair.
    #[arg(long, default_value_t = 200_000)]
    events: usize,
    /// Pairs of (bare driver, publisher) for each row.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Seconds that each broker is paused, and then stopped, while the memory is watched; 0 leaves
    /// this out.
    #[arg(long, default_value_t = 30)]
    outage_seconds: u64,
}

#[derive(Serialize)]
struct Report {
    events: usize,
    rates: Vec<Rates>,
    others: Vec<Other>,
    outages: Vec<Outage>,
}

/// A row: what one publisher had under way, and how fast that was.
#[derive(Serialize)]
struct Rates {
    broker: &'static str,
    lanes: usize,
    batch_events: usize,
    #[serde(flatten)]
    compared: Compared,
}

pub(crate) async fn run(args: PublishArgs) -> Result<()> {
    brokers::check_names(&args.only)?;
    ensure!(args.events > 0, "no events to measure with");
    // What a relay with the usual settings has under way: a batch in each lane.
    let usual = Window {
        lanes: PgConfig::new("").workers,
        batch: RelayConfig::default().batch_events_max,
    };
    let mut report = Report {
        events: args.events,
        rates: Vec::new(),
        others: Vec::new(),
        outages: Vec::new(),
    };
    // Memory first: what the rates leave to the allocator would hide what an outage takes.
    if args.outage_seconds > 0 {
        let duration = Duration::from_secs(args.outage_seconds);
        for name in &args.only {
            let mut broker = brokers::start(name).await?;
            let outages = outage::watch(&mut *broker, usual, duration).await?;
            report.outages.extend(outages);
        }
    }
    if args.pairs > 0 {
        for name in &args.only {
            let mut broker = brokers::start(name).await?;
            for window in broker.windows(usual) {
                report.rates.push(Rates {
                    broker: broker.name(),
                    lanes: window.lanes,
                    batch_events: window.batch,
                    compared: rates(&args, &mut *broker, window).await?,
                });
            }
            report.others.extend(broker.others(args.events).await?);
        }
    }
    print(&report);
    Ok(())
}

/// Pairs at the start that are not counted: the server's compilers are at work.
const WARM_UP_PAIRS: usize = 2;

/// Alternating pairs.
async fn rates(args: &PublishArgs, broker: &mut dyn Broker, window: Window) -> Result<Compared> {
    let publisher = broker.publisher(brokers::PUBLISH_TIMEOUT)?;
    let mut pairs = Pairs::default();
    for pair in 0..WARM_UP_PAIRS + args.pairs {
        let mut rates = [0.0; 2];
        for (half, rate) in rates.iter_mut().enumerate() {
            broker.clear().await?;
            let events = Arc::new(events(broker.topic(), args.events)?);
            let took = if half == 0 {
                broker.bare(&events, window).await?
            } else {
                lanes::publish(&publisher, &events, window).await?
            };
            *rate = args.events as f64 / took.as_secs_f64();
            let stored = broker.stored().await?;
            ensure!(
                stored == args.events,
                "{stored} events in the topic of {} for {}",
                broker.name(),
                args.events
            );
        }
        if pair >= WARM_UP_PAIRS {
            pairs.push(broker.name(), rates[0], rates[1]);
        }
    }
    publisher.close(Duration::from_secs(1)).await;
    pairs.compared()
}

/// Events as if they had just been claimed, with ids of their own.
fn events(topic: &str, count: usize) -> Result<Vec<StoredEvent>> {
    let now = OffsetDateTime::now_utc();
    let stored = |n| {
        let event = fill::event(topic, n)?;
        Ok(StoredEvent::from_event(&event, Position(0), now))
    };
    (0..count).map(stored).collect()
}

fn print(report: &Report) {
    if !report.rates.is_empty() {
        println!(
            "publishers, {} events of about 350 bytes, acknowledged, batches under way × their events, beside the bare drivers; median (min–max)",
            report.events
        );
        println!("{}", Compared::head("broker", "ratio (bar ≥ 0.8)"));
    }
    for rates in &report.rates {
        let name = format!("{} {}×{}", rates.broker, rates.lanes, rates.batch_events);
        println!("{}", rates.compared.row(&name));
    }
    for other in &report.others {
        println!(
            "beside it, {}: {:.0} events/s",
            other.client, other.events_per_second
        );
    }
    if !report.outages.is_empty() {
        println!("{}", Outage::head());
    }
    for outage in &report.outages {
        println!("{}", outage.row());
    }
    match serde_json::to_string(report) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report can't be written as JSON: {error}"),
    }
}
