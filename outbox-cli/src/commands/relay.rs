//! `outbox relay`

use std::{process, sync::Arc, time::Duration};

use outbox_core::{OutboxStore, Publisher, Relay, Route, TopicSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::check;
use crate::{
    args::{GlobalArgs, RelayArgs},
    config::{Config, PublisherConfig, RouteConfig, Settings, StoreConfig},
    exit::{Failure, INTERRUPTED},
    http, publishers,
    signals::Signals,
    store,
};

/// Threads of the relay: lanes wait for servers most of the time, and more threads only cost
/// memory.
const THREADS: usize = 2;

/// Runs the relay until a signal stops it.
pub(crate) fn run(
    args: &RelayArgs,
    settings: Settings,
    global: &GlobalArgs,
) -> Result<(), Failure> {
    on_threads(async {
        if args.check {
            return check::run(args, settings, global).await;
        }
        let store_config = StoreConfig::new(settings.store.clone(), global)?;
        relay(store_config, Config::new(settings, args)?).await
    })
}

/// Does the work on the threads of a relay.
pub(super) fn on_threads(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("start: {error}")))?;
    let result = runtime.block_on(work);
    // What still hangs in a blocking call must not hold the process up.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn relay(store_config: StoreConfig, config: Config) -> Result<(), Failure> {
    let Config {
        relay,
        routes,
        http,
        ..
    } = config;
    let metrics = http.map(|_| http::record_metrics()).transpose()?;
    let stop = CancellationToken::new();
    let signals = Signals::listen()?;

    let only_stdout = routes
        .iter()
        .all(|r| matches!(r.publisher, PublisherConfig::Stdout));
    let reader_gone = CancellationToken::new();
    let schema_version = store::schema_version(store_config.kind)?;
    let store: Arc<dyn OutboxStore> = store::open(store_config).await?;
    let mut builder = Relay::builder(Arc::clone(&store)).config(relay);
    let mut summary = Vec::new();
    for config in routes {
        summary.push((
            config.name.clone(),
            config.publisher.name(),
            topics(&config.topics),
        ));
        builder = builder.route(route(config, |publisher| {
            publishers::open(publisher, &reader_gone)
        })?);
    }
    let relay = builder.build()?;

    let mut serving = None;
    if let (Some(address), Some(metrics)) = (http, metrics) {
        let server = http::Server::bind(address, metrics).await?;
        info!(address = %server.address()?, "serving /metrics, /healthz and /readyz");
        serving = Some(tokio::spawn(server.run(relay.health(), stop.clone())));
    }
    for (route, publisher, topics) in &summary {
        info!(store = store.name(), schema_version, route, publisher, topics, worker = %relay.worker(), "relay starts");
    }

    let watcher = tokio::spawn(watch(signals, stop.clone()));
    // Without any other route there is nobody left to work for.
    let pipe = tokio::spawn(stop_without_reader(
        only_stdout,
        reader_gone.clone(),
        stop.clone(),
    ));
    let result = relay.run(stop.clone()).await;
    // A second signal still ends a stop that hangs, up to here.
    watcher.abort();
    pipe.abort();
    stop.cancel();
    if let Some(serving) = serving {
        serving
            .await
            .map_err(|error| Failure::failed(format!("serve HTTP: {error}")))??;
    }
    result?;
    if only_stdout && reader_gone.is_cancelled() {
        return Err(Failure::failed(
            "relay: whoever read standard output has closed it — what was not taken stays in the \
             outbox; start again with a reader",
        ));
    }
    info!("relay stopped; nothing is in flight");
    Ok(())
}

fn topics(topics: &TopicSet) -> String {
    let patterns: Vec<_> = topics.patterns().iter().map(ToString::to_string).collect();
    patterns.join(",")
}

/// The route of the engine, with the publisher that `open` makes.
pub(super) fn route(
    config: RouteConfig,
    open: impl FnOnce(PublisherConfig) -> Result<Arc<dyn Publisher>, Failure>,
) -> Result<Route, Failure> {
    let mut route = Route::new(config.name, open(config.publisher)?)
        .topics(config.topics)
        .strict_order(config.strict_order)
        .breaker(config.breaker);
    for policy in config.policies {
        route = route.policy(policy.topics, policy.retry);
    }
    Ok(route)
}

/// The first signal drains, the second ends the process at once.
async fn watch(mut signals: Signals, stop: CancellationToken) {
    for is_first in [true, false] {
        signals.next().await;
        if is_first {
            info!("stopping: what is in flight is finished; a second signal ends at once");
            stop.cancel();
        }
    }
    warn!(
        "ended at once by a second signal; events in flight are published again after their lease"
    );
    process::exit(i32::from(INTERRUPTED));
}

async fn stop_without_reader(only_stdout: bool, gone: CancellationToken, stop: CancellationToken) {
    gone.cancelled().await;
    if only_stdout {
        stop.cancel();
    }
}
