//! `outbox bench`

mod args;
mod ledger;
mod report;
mod rest;
mod run;
mod write;

use std::{sync::Arc, time::Duration};

use outbox_core::{Publisher, Relay, RelayConfig, TopicPattern, TopicSet, check_within};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) use self::args::BenchArgs;
use self::{
    ledger::{Ledger, Watched},
    report::Report,
    run::{Part, Run},
    write::{Events, Target},
};
use super::relay::route;
use crate::{
    args::GlobalArgs,
    config::{Config, PublisherConfig, RouteConfig, Settings, StoreConfig},
    exit::Failure,
    publishers,
    signals::Signals,
    store,
};

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest that the end waits for a broker that does not answer: what it says no longer counts.
const GRACE_MAX: Duration = Duration::from_secs(2);

/// Writes events, relays them and prints how fast that was.
pub(crate) async fn run(
    args: &BenchArgs,
    settings: Settings,
    global: &GlobalArgs,
) -> Result<(), Failure> {
    let store_config = StoreConfig::new(settings.store.clone(), global)?;
    let config = Config::new(settings, &args.relay())?;
    let route_config = taking(config.routes, &args.topic)?;
    let ledger = Arc::new(Ledger::new());
    let events = Events {
        ledger: Arc::clone(&ledger),
        topic: args.topic.clone(),
        event_type: format!("bench-{}", Uuid::new_v4().simple()),
        keys: args.keys,
        payload: vec![b'x'; usize::try_from(args.size).unwrap_or(usize::MAX)],
    };
    // Too large, or a topic that can't be: told before anything is done.
    events.event(0)?;
    if !args.yes {
        return Err(Failure::usage(format!(
            "bench: this writes up to {} events to the outbox, under the topic `{}`, and sends them \
             to the broker of the route `{}` — add --yes",
            u64::from(args.events) * 2,
            args.topic,
            route_config.name
        )));
    }

    let broker = broker(&route_config)?;
    let route_name = route_config.name.clone();
    let signals = Signals::listen()?;
    let only = TopicSet::new([TopicPattern::Exact(args.topic.clone())])?;
    let mut watched = None;
    let route = route(route_config, |publisher| {
        let publisher: Arc<dyn Publisher> = Arc::new(Watched {
            publisher: publishers::open(publisher, &CancellationToken::new())?,
            ledger: Arc::clone(&ledger),
        });
        Ok(Arc::clone(watched.insert(publisher)))
    })?;
    let store = store::open_to_change(store_config.clone()).await?;
    if let Some(publisher) = watched {
        // Nothing is written for a broker that is known to be down.
        let checked = check_within(config.relay.publish_timeout, || publisher.check()).await;
        checked.map_err(|error| error.context("route", &route_name))?;
    }
    let writer = store::writer(StoreConfig {
        pool_size: Some(args.writers),
        ..store_config.clone()
    });
    let relay = Relay::builder(Arc::clone(&store))
        .config(settings_of_relay(config.relay))
        .route(route.topics(only))
        .build()?;
    let report = Report::new(args, route_name, broker, store.name());
    let run = Run {
        args,
        target: Arc::new(Target {
            events,
            writer: writer.await?,
            stop: CancellationToken::new(),
        }),
        ledger,
        store,
        store_config,
        part: Part::Writing,
        report,
    };
    run.finish(relay, signals).await
}

/// The one route that takes the topic.
fn taking(routes: Vec<RouteConfig>, topic: &str) -> Result<RouteConfig, Failure> {
    let mut routes = routes.into_iter();
    routes.find(|route| route.topics.matches(topic)).ok_or_else(|| {
        Failure::usage(format!(
            "bench: no route takes the topic `{topic}` — add it to the topics of a route, or give \
             --topic one that a route takes and nobody consumes"
        ))
    })
}

/// What the route's broker is.
fn broker(route: &RouteConfig) -> Result<&'static str, Failure> {
    match &route.publisher {
        PublisherConfig::Stdout => Err(Failure::usage(format!(
            "bench: the route `{}` writes to standard output, which is no broker — give \
             --publisher-url, or the --topic of another route",
            route.name
        ))),
        broker @ PublisherConfig::Broker(_) => Ok(broker.name()),
    }
}

/// The user's settings, but for what would touch anything beside the events of the run.
fn settings_of_relay(mut config: RelayConfig) -> RelayConfig {
    // The name is perhaps that of a relay which runs.
    config.worker = None;
    config.clean_interval = NEVER;
    config.retention = NEVER;
    config.dedup_retention = NEVER;
    config.shutdown_grace = config.shutdown_grace.min(GRACE_MAX);
    config
}

#[cfg(test)]
mod tests {
    use outbox_core::WorkerId;

    use super::*;

    #[test]
    fn the_relay_of_a_run_has_its_own_name_and_removes_nothing() {
        let users = RelayConfig {
            worker: Some(WorkerId("relay-1".to_owned())),
            batch_events_max: 7,
            retention: Duration::ZERO,
            ..RelayConfig::default()
        };
        let config = settings_of_relay(users);
        config.validate().unwrap();
        assert_eq!((config.worker, config.batch_events_max), (None, 7));
        let cleaning = [
            config.clean_interval,
            config.retention,
            config.dedup_retention,
        ];
        assert_eq!(cleaning, [NEVER; 3]);
        assert_eq!(config.shutdown_grace, GRACE_MAX);
    }
}
