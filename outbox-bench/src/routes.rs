//! `cargo xtask bench routes`: one relay with a route to each of four brokers, one of which is down
//! while events for it wait, beside the same relay without that route and its events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use clap::Args;
use futures::future::join_all;
use outbox_core::{
    Capabilities, OutboxStore, Outcome, Publisher, Relay, RelayConfig, Route, Store as _,
    StoredEvent, TopicSet,
};
use outbox_postgres::{PgConfig, PgQueue};
use serde::Serialize;
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    brokers::{self, Broker},
    fill::fill_topics,
    pairs::{Compared, Pairs},
    setup::Servers,
};

const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(crate) struct RoutesArgs {
    /// The brokers that are down, one after the other, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = brokers::NAMES)]
    down: Vec<String>,
    /// Events of each topic.
    #[arg(long, default_value_t = 40_000)]
    events: usize,
    /// Pairs of (three routes, and a fourth that is down) for each broker.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
}

#[derive(Serialize)]
struct Report {
    events: usize,
    downs: Vec<Down>,
}

#[derive(Serialize)]
struct Down {
    down: String,
    #[serde(flatten)]
    compared: Compared,
}

type Brokers = Vec<Box<dyn Broker>>;

pub(crate) async fn run(args: RoutesArgs) -> Result<()> {
    brokers::check_names(&args.down)?;
    ensure!(args.events > 0 && args.pairs > 0, "nothing to measure");
    let mut all = Brokers::new();
    for name in brokers::NAMES {
        all.push(brokers::start(name).await?);
    }
    let servers = Servers::prepare().await?;
    let measured = measure(&args, &servers, &mut all).await;
    servers.remove().await?;
    print(&measured?);
    Ok(())
}

async fn measure(args: &RoutesArgs, servers: &Servers, all: &mut Brokers) -> Result<Report> {
    let store = PgQueue::connect(PgConfig::new(&servers.postgres)).await?;
    store.migrate().await?;
    let store: Arc<dyn OutboxStore> = Arc::new(store);
    let mut report = Report {
        events: args.events,
        downs: Vec::new(),
    };
    for name in &args.down {
        let at = all.iter().position(|broker| broker.name() == name);
        let mut down = all.remove(at.context("a broker of this name")?);
        down.server().stop()?;
        let mut pairs = Pairs::default();
        // The first warms the servers up.
        for pair in 0..=args.pairs {
            let three = drain(&store, &servers.postgres, all, None, args.events).await?;
            let four = drain(&store, &servers.postgres, all, Some(&*down), args.events).await?;
            if pair > 0 {
                pairs.push(&format!("{name} down"), three, four);
            }
        }
        down.server().restart()?;
        all.push(down);
        report.downs.push(Down {
            down: name.clone(),
            compared: pairs.compared()?,
        });
    }
    Ok(report)
}

/// Events a second of the brokers that are up.
async fn drain(
    store: &Arc<dyn OutboxStore>,
    postgres: &str,
    up: &mut Brokers,
    down: Option<&dyn Broker>,
    events: usize,
) -> Result<f64> {
    for broker in up.iter_mut() {
        broker.clear().await?;
    }
    let topics = up.iter().map(|broker| broker.topic());
    let topics: Vec<_> = topics.chain(down.map(Broker::topic)).collect();
    fill_topics(postgres, &topics, events).await?;
    let mut relay = Relay::builder(Arc::clone(store)).config(RelayConfig::default());
    let mut counted = Vec::new();
    for broker in up.iter() {
        let publisher = Arc::new(Counted::new(&**broker, events)?);
        counted.push((broker.name(), Arc::clone(&publisher)));
        relay = relay.route(route(&**broker, publisher)?);
    }
    if let Some(down) = down {
        let publisher = Arc::new(Counted::new(down, events)?);
        relay = relay.route(route(down, publisher)?);
    }
    let stop = CancellationToken::new();
    let started = Instant::now();
    let running = tokio::spawn(relay.build()?.run(stop.clone()));
    let ends = join_all(counted.iter().map(async |(name, publisher)| {
        publisher.complete.notified().await;
        let rate = events as f64 / started.elapsed().as_secs_f64();
        eprintln!("  {name}: {rate:.0}/s");
    }));
    timeout(PATIENCE, ends)
        .await
        .context("not everything was delivered in time")?;
    let elapsed = started.elapsed();
    stop.cancel();
    running.await??;
    for broker in up.iter() {
        let (stored, name) = (broker.stored().await?, broker.name());
        ensure!(stored == events, "{stored} of {events} events in {name}");
    }
    Ok((up.len() * events) as f64 / elapsed.as_secs_f64())
}

fn route(broker: &dyn Broker, publisher: Arc<Counted>) -> Result<Route> {
    let topics = TopicSet::new([broker.topic().parse()?])?;
    Ok(Route::new(broker.name(), publisher).topics(topics))
}

/// A publisher that says when it has delivered so many: to ask the database would load it.
struct Counted {
    publisher: Arc<dyn Publisher>,
    delivered: AtomicUsize,
    all: usize,
    complete: Notify,
}

impl Counted {
    fn new(broker: &dyn Broker, all: usize) -> Result<Self> {
        Ok(Self {
            publisher: broker.publisher(brokers::PUBLISH_TIMEOUT)?,
            delivered: AtomicUsize::new(0),
            all,
            complete: Notify::new(),
        })
    }
}

#[async_trait]
impl Publisher for Counted {
    fn name(&self) -> &'static str {
        self.publisher.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.publisher.capabilities()
    }

    fn validate(&self, event: &StoredEvent) -> outbox_core::Result<()> {
        self.publisher.validate(event)
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let outcomes = self.publisher.publish(events).await;
        let delivered = outcomes.iter().filter(|outcome| outcome.is_delivered());
        let delivered = delivered.count();
        let before = self.delivered.fetch_add(delivered, Ordering::Relaxed);
        if before < self.all && before + delivered >= self.all {
            self.complete.notify_one();
        }
        outcomes
    }

    async fn check(&self) -> outbox_core::Result<()> {
        self.publisher.check().await
    }

    async fn close(&self, grace: Duration) {
        self.publisher.close(grace).await;
    }
}

fn print(report: &Report) {
    println!(
        "three routes of one relay, {} events each, while a fourth is configured, its broker is stopped and as many events wait for it, beside the three alone; median (min–max)",
        report.events
    );
    println!("{}", Compared::head("down", "ratio (bar ≥ 0.9)"));
    for down in &report.downs {
        println!("{}", down.compared.row(&down.down));
    }
    match serde_json::to_string(report) {
        Ok(json) => println!("{json}"),
        Err(error) => eprintln!("the report can't be written as JSON: {error}"),
    }
}
