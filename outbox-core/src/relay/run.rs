//! A relay: built from a store and routes, run until told to stop.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::join;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    clean::Cleaner,
    config::{RelayConfig, Route},
    gates::Jitter,
    health::Health,
    mutation::Mutation,
    route::RouteContext,
    start::{check_store, start_routes},
    store_watch::StoreWatch,
};
use crate::{
    error::{Error, ErrorKind, Result},
    metric,
    store::{OutboxStore, WorkerId},
};

/// Rows that the metrics' counts look at, at the most.
const INSPECT_COUNT_MAX: u32 = 100_000;

/// Brings events from a store to publishers, at least once, until told to stop.
///
/// Guarantees: an event is marked delivered only after the publisher's acknowledgement (I3); no
/// transaction of the store is open while a publisher is called (I11); memory, attempts and log
/// lines are bounded (I8). Duplicates: after a crash, a lost lease or an unknown outcome events are
/// published again with the same id and bytes. Order: that of the store (I5), or none.
pub struct Relay {
    store: Arc<dyn OutboxStore>,
    routes: Vec<Route>,
    config: RelayConfig,
    worker: WorkerId,
    jitter: Arc<Jitter>,
    health: Health,
    mutation: Option<Mutation>,
}

/// Builds a [`Relay`].
#[must_use = "a relay is made by build"]
pub struct RelayBuilder {
    store: Arc<dyn OutboxStore>,
    routes: Vec<Route>,
    config: RelayConfig,
    seed: Option<u64>,
    mutation: Option<Mutation>,
}

impl RelayBuilder {
    /// Adds a route.
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Other settings than the default ones.
    pub fn config(mut self, config: RelayConfig) -> Self {
        self.config = config;
        self
    }

    /// Seeds the random numbers of backoff, for tests that repeat exactly.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds a relay that is broken in this way.
    #[doc(hidden)]
    pub fn mutation(mut self, mutation: Mutation) -> Self {
        self.mutation = Some(mutation);
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `Configuration`: no route, two of one name, or numbers that make no sense.
    pub fn build(self) -> Result<Relay> {
        let wrong = |what| Error::new(ErrorKind::Configuration, "build relay", what);
        self.config.validate()?;
        let names: BTreeSet<&str> = self
            .routes
            .iter()
            .map(|route| route.name.as_str())
            .collect();
        if self.routes.is_empty() {
            return Err(wrong("there is no route; add one with a publisher"));
        }
        if names.len() < self.routes.len() {
            return Err(wrong("two routes have the same name"));
        }
        self.routes.iter().try_for_each(Route::validate)?;
        let fresh = || WorkerId(format!("relay-{}", uuid::Uuid::new_v4().simple()));
        let health = Health::default();
        for route in &self.routes {
            health.route(&route.name, |_| {});
        }
        Ok(Relay {
            worker: self.config.worker.clone().unwrap_or_else(fresh),
            jitter: Arc::new(Jitter::new(self.seed.unwrap_or_else(rand::random))),
            store: self.store,
            routes: self.routes,
            config: self.config,
            health,
            mutation: self.mutation,
        })
    }
}

impl Relay {
    /// Starts building a relay on this store.
    pub fn builder(store: Arc<dyn OutboxStore>) -> RelayBuilder {
        RelayBuilder {
            store,
            routes: Vec::new(),
            config: RelayConfig::default(),
            seed: None,
            mutation: None,
        }
    }

    /// A handle on the relay's state, for readiness checks.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Who this relay is in leases.
    pub fn worker(&self) -> &WorkerId {
        &self.worker
    }

    /// Runs until `stop` is cancelled, then drains: no new claims, acknowledgements within the
    /// grace are settled, everything else is given back, publishers are closed.
    ///
    /// A store or broker that is down is waited for. Cancellation by dropping the future is safe
    /// for the events: leases run out and they are published again.
    ///
    /// # Errors
    /// At the start only, and only what waiting can't mend ([`ErrorKind::needs_operator`]): a
    /// missing schema, a wrong password, a wrong setting. A publisher of several that refuses this
    /// relay only pauses its own route, which joins when it is let; when all do, the first one's
    /// refusal is returned.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        let Self {
            store,
            routes,
            config,
            worker,
            jitter,
            health,
            mutation,
        } = self;
        let store_watch = Arc::new(StoreWatch::new(store.name(), health.clone()));
        if !check_store(&*store, &config, &jitter, &store_watch, &stop).await? {
            return Ok(());
        }
        let contexts: Vec<Arc<RouteContext>> = routes
            .into_iter()
            .map(|route| {
                let context = RouteContext::new(
                    route,
                    (Arc::clone(&store), Arc::clone(&store_watch)),
                    worker.clone(),
                    config.clone(),
                    Arc::clone(&jitter),
                    health.clone(),
                    mutation,
                );
                Arc::new(context)
            })
            .collect();
        let routes = contexts.len();
        let mut tasks = JoinSet::new();
        // Routes that are let work while others are still being asked.
        let start = async {
            start_routes(contexts, &stop, &mut tasks).await?;
            health.started();
            info!(%worker, store = store.name(), routes, "relay started");
            Ok::<(), Error>(())
        };
        // Neither needs a destination, and a slow one of them must not hold up the other.
        let upkeep = join(
            observe(&*store, &config),
            Cleaner::new(&*store, &config, &jitter).run(),
        );
        tokio::pin!(upkeep);
        tokio::select! { biased;
            () = stop.cancelled() => {}
            started = start => started?,
            _ = &mut upkeep => {}
        }
        tokio::select! { biased;
            () = stop.cancelled() => {}
            _ = &mut upkeep => {}
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(panic) = ended {
                warn!(error = %panic, "route task failed");
            }
        }
        info!(%worker, "relay stopped");
        Ok(())
    }
}

/// Reads depth and age for the metrics, for ever.
async fn observe(store: &dyn OutboxStore, config: &RelayConfig) {
    loop {
        // A store that fails is reported by the lanes, which meet it more often.
        if let Ok(found) = store.inspect(INSPECT_COUNT_MAX).await {
            let gauges = [
                (metric::PENDING_EVENTS, found.pending.value),
                (metric::SCHEDULED_EVENTS, found.scheduled.value),
                (metric::PARKED_EVENTS, found.held.value),
                (metric::DEAD_EVENTS, found.dead.value),
                (metric::BLOCKED_KEYS, found.blocked_keys.value),
            ];
            for (name, value) in gauges {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "counts stop at a bound far below 2^52"
                )]
                metrics::gauge!(name, "store" => store.name()).set(value as f64);
            }
            metrics::gauge!(metric::OLDEST_PENDING_SECONDS, "store" => store.name())
                .set(found.oldest_pending.as_secs_f64());
        }
        sleep(config.inspect_interval).await;
    }
}
