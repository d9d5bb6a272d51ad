//! The relay processes: started, killed, stopped and started again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outbox_core::{
    BreakerPolicy, OnDead, Relay, RelayConfig, RetryPolicy, Route, TopicPattern, TopicSet, WorkerId,
};
use rand::RngExt as _;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Mutation,
    broker::publisher_of,
    scenario::{GRACE, PAUSE_BASE, PAUSE_CAP, PUBLISH_TIMEOUT, RETRY_BASE, RETRY_CAP},
    store::store_of,
    world::World,
};
use crate::{invariants::Fact, memory};

/// What slots are told.
#[derive(Debug, Default)]
pub(super) struct Orders {
    told: Mutex<Told>,
    /// Wakes slots in the order in which they began to wait, which tokio's watch channel does not.
    news: Notify,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    /// How often each slot was told to stop.
    pub(super) stops: BTreeMap<usize, u64>,
    /// Nobody starts before.
    pub(super) paused_until: Option<Instant>,
    /// The run is over.
    pub(super) over: bool,
}

impl Orders {
    pub(super) fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.notify_waiters();
    }

    fn now(&self) -> Told {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.clone()
    }

    async fn until(&self, right: impl Fn(&Told) -> bool) {
        loop {
            let news = self.news.notified();
            if right(&self.now()) {
                return;
            }
            news.await;
        }
    }
}

/// Keeps a relay running in a slot until the run is over. An error is a relay that did not end when
/// it was told to, or ended when it was not.
pub(super) async fn keep(
    world: Arc<World>,
    slot: usize,
    mutation: Option<Mutation>,
    orders: Arc<Orders>,
) -> Result<(), String> {
    loop {
        let told = orders.now();
        if told.over {
            return Ok(());
        }
        if let Some(end) = told.paused_until.filter(|end| *end > Instant::now()) {
            sleep_until(end).await;
            continue;
        }
        let stops = told.stops.get(&slot).copied();
        let process = world.begin(slot);
        let death = world.death_of(process);
        let stop = CancellationToken::new();
        let mut task = tokio::spawn(relay(&world, process, mutation).run(stop.clone()));
        let told = orders.until(|told| told.over || told.stops.get(&slot).copied() > stops);
        tokio::select! { biased;
            () = death.cancelled() => {}
            () = told => {
                world.fact_of_all(&Fact::Stopping { process });
                stop.cancel();
            }
            ended = &mut task => return Err(format!("p{process} ended by itself: {ended:?}")),
        }
        if !death.is_cancelled() {
            // Beyond the grace: the release, and the publishers' close.
            let limit = GRACE + Duration::from_secs(8);
            tokio::select! { biased;
                () = death.cancelled() => {}
                ended = timeout(limit, &mut task) => match ended {
                    Ok(Ok(Ok(()))) => {}
                    Ok(ended) => return Err(format!("p{process} stopped with {ended:?}")),
                    Err(_) => return Err(format!("p{process} did not stop within {limit:?}")),
                }
            }
        }
        // What is left of it must not be seen any more, whatever state it is in.
        death.cancel();
        task.abort();
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        let pause = world.state().random.random_range(0..1500);
        sleep(Duration::from_millis(pause)).await;
    }
}

fn relay(world: &Arc<World>, process: u32, mutation: Option<Mutation>) -> Relay {
    let scenario = &world.scenario;
    let config = RelayConfig {
        batch_events_max: scenario.batch_events_max,
        batch_bytes_max: scenario.batch_bytes_max,
        poll_max: Duration::from_millis(500),
        publish_timeout: PUBLISH_TIMEOUT,
        shutdown_grace: GRACE,
        acquire_interval: Duration::from_millis(400),
        inspect_interval: Duration::from_secs(3600),
        clean_interval: Duration::from_secs(4),
        retention: Duration::ZERO,
        store_backoff_max: Duration::from_millis(500),
        worker: Some(WorkerId(format!("p{process}"))),
        ..RelayConfig::default()
    };
    let mut builder = Relay::builder(store_of(world, process))
        .config(config)
        .seed(u64::from(process));
    match mutation {
        Some(Mutation::Engine(mutation)) => builder = builder.mutation(mutation),
        // The engine gives such a lane up by itself.
        Some(Mutation::Store(memory::Mutation::DroppedBatchKeepsNext)) => {
            builder = builder.mutation(outbox_core::Mutation::DroppedBatchIgnored);
        }
        _ => {}
    }
    for (index, plan) in scenario.routes.iter().enumerate() {
        let policy = RetryPolicy {
            base: RETRY_BASE,
            cap: RETRY_CAP,
            attempts_max: scenario.attempts_max,
            crashes_max: scenario.crashes_max,
            topic_patience: scenario.topic_patience,
            on_dead: if plan.skips {
                OnDead::Skip
            } else {
                OnDead::HoldKey
            },
            ..RetryPolicy::default()
        };
        let breaker = BreakerPolicy {
            base: PAUSE_BASE,
            cap: PAUSE_CAP,
            probe_timeout: Duration::from_secs(4),
        };
        let patterns = plan
            .topics
            .iter()
            .map(|topic| TopicPattern::Exact(topic.clone()));
        let topics = TopicSet::new(patterns).expect("there are topics");
        let route = Route::new(plan.name.as_str(), publisher_of(world, process, index))
            .topics(topics)
            .policy(TopicPattern::All, policy)
            .breaker(breaker)
            .strict_order(plan.strict);
        builder = builder.route(route);
    }
    builder.build().expect("the settings make sense")
}
