//! One route of a relay: takes lanes, runs a task for each, gives them back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    config::{RelayConfig, Route},
    gates::{Gates, Jitter},
    health::Health,
    lane::LaneTask,
    mutation::Mutation,
    outage::Outage,
    quiet::{Quiet, QuietByCause},
    settle::store_pause,
    store_watch::StoreWatch,
    telemetry::Telemetry,
};
use crate::{
    directive::remedy,
    error::Error,
    publisher::{OrderClass, Publisher},
    retry::RetryPolicy,
    store::{AcquireRequest, Lane, LaneId, OutboxStore, Unreadable, Verdict, WorkerId},
    stored_event::StoredEvent,
    topic::{TopicPattern, TopicSet},
    trace::trace_id,
};

/// Log lines about single events, per minute and route; dead ones are counted in full by a metric.
const EVENT_LINES_PER_MINUTE: u32 = 20;

/// What the lanes of a route share.
pub(super) struct RouteContext {
    pub(super) name: String,
    pub(super) store: Arc<dyn OutboxStore>,
    pub(super) ordered: bool,
    /// One event per key in flight.
    pub(super) waves: bool,
    pub(super) publisher: Arc<dyn Publisher>,
    pub(super) gates: Gates,
    pub(super) jitter: Arc<Jitter>,
    pub(super) config: RelayConfig,
    pub(super) telemetry: Telemetry,
    mutation: Option<Mutation>,
    topics: TopicSet,
    worker: WorkerId,
    policies: Vec<(TopicPattern, RetryPolicy)>,
    default_policy: RetryPolicy,
    health: Health,
    /// Of the whole relay.
    store_watch: Arc<StoreWatch>,
    destination_outage: Outage,
    topic_lines: Mutex<QuietByCause>,
    /// Events settled too late: no failure of the store, and no reason to be silent about one.
    lost_lines: Mutex<Quiet>,
    event_lines: Mutex<Quiet>,
}

fn line(quiet: &Mutex<Quiet>) -> Option<u64> {
    quiet.lock().unwrap_or_else(PoisonError::into_inner).line()
}

fn line_of(quiet: &Mutex<QuietByCause>, error: &Error) -> Option<u64> {
    let mut quiet = quiet.lock().unwrap_or_else(PoisonError::into_inner);
    quiet.line(error)
}

impl RouteContext {
    pub(super) fn new(
        route: Route,
        (store, store_watch): (Arc<dyn OutboxStore>, Arc<StoreWatch>),
        worker: WorkerId,
        config: RelayConfig,
        jitter: Arc<Jitter>,
        health: Health,
        mutation: Option<Mutation>,
    ) -> Self {
        let ordered = store.ordered();
        let in_flight = route.publisher.capabilities().order == OrderClass::InFlight;
        let mut policies = route.policies;
        if mutation == Some(Mutation::AttemptsWithoutEnd) {
            for (_, policy) in &mut policies {
                policy.attempts_max = u32::MAX;
            }
        }
        let waves = ordered && (route.strict_order || !in_flight);
        Self {
            ordered,
            waves: waves && mutation != Some(Mutation::WaveLimitIgnored),
            mutation,
            gates: Gates::new(&route.breaker),
            telemetry: Telemetry::new(store.name(), &route.name),
            name: route.name,
            topics: route.topics,
            publisher: route.publisher,
            policies,
            default_policy: RetryPolicy::default(),
            store,
            worker,
            config,
            jitter,
            health,
            store_watch,
            destination_outage: Outage::default(),
            topic_lines: Mutex::default(),
            lost_lines: Mutex::new(Quiet::for_loop()),
            event_lines: Mutex::new(Quiet::new(EVENT_LINES_PER_MINUTE, Duration::from_secs(60))),
        }
    }

    /// Whether the relay is broken in this way.
    pub(super) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(super) fn policy(&self, topic: &str) -> &RetryPolicy {
        let fitting = self
            .policies
            .iter()
            .find(|(pattern, _)| pattern.matches(topic));
        fitting.map_or(&self.default_policy, |(_, policy)| policy)
    }

    pub(super) fn store_answered(&self) {
        self.store_watch.answered();
    }

    pub(super) fn store_failed(&self, operation: &'static str, error: &Error) {
        self.store_watch.failed(operation, Some(&self.name), error);
    }

    pub(super) fn destination_failed(&self, now: Instant, error: &Error) {
        self.gates
            .destination_failed(now, error, self.jitter.unit());
        self.telemetry.open.set(1.0);
        self.health.route(&self.name, |route| {
            route.open = true;
            route.last_error = Some(error.to_string());
        });
        if let Some(suppressed) = self.destination_outage.failed(error) {
            let publisher = self.publisher.name();
            warn!(route = self.name, publisher, %error, suppressed, remedy = remedy(error.kind()), "destination failed, route paused");
        }
    }

    pub(super) fn destination_answered(&self) {
        if self.gates.destination_answered() {
            self.destination_recovered();
        }
    }

    /// Nothing was waiting to be sent, and the publisher's check found nothing wrong.
    pub(super) fn destination_reachable(&self) {
        if self.gates.destination_reachable() {
            self.destination_recovered();
        }
    }

    fn destination_recovered(&self) {
        self.telemetry.open.set(0.0);
        self.health.route(&self.name, |route| {
            route.open = false;
            route.last_error = None;
        });
        let Some(ended) = self.destination_outage.ended() else {
            return;
        };
        if let Some(suppressed) = ended.line {
            let (publisher, failures) = (self.publisher.name(), ended.failures);
            info!(
                route = self.name,
                publisher,
                failures,
                down_ms = ended.down_ms,
                suppressed,
                "destination answers again"
            );
        }
    }

    pub(super) fn topic_failed(&self, topic: &str, now: Instant, error: &Error) -> Duration {
        let pause = self
            .gates
            .topic_failed(topic, now, error, self.jitter.unit());
        if let Some(suppressed) = line_of(&self.topic_lines, error) {
            warn!(route = self.name, topic, %error, suppressed, remedy = remedy(error.kind()), "topic failed, its events wait");
        }
        pause
    }

    fn works_lanes(&self, count: usize) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a relay works far fewer than 2^52 lanes"
        )]
        self.telemetry.lanes.set(count as f64);
        self.health.route(&self.name, |route| route.lanes = count);
    }

    /// A line for an event that failed or died, within the bound.
    pub(super) fn log_verdict(&self, event: &StoredEvent, verdict: &Verdict) {
        let (note, dead) = match verdict {
            Verdict::Retry { note, .. } => (note, None),
            Verdict::Dead { note, reason, .. } => {
                self.telemetry.dead(*reason);
                self.telemetry.attempts.record(f64::from(event.attempts));
                (note, Some(reason))
            }
            _ => return,
        };
        let Some(suppressed) = line(&self.event_lines) else {
            return;
        };
        let (event_id, topic, attempt) = (event.id, &event.topic, event.attempts);
        let aggregate_type = event.aggregate_type.as_deref();
        let aggregate_id = event.aggregate_id.as_deref();
        let trace_id = trace_id(&event.headers);
        match dead {
            None => {
                warn!(route = self.name, %event_id, aggregate_type, aggregate_id, topic, attempt, trace_id, error = note.text, suppressed, "attempt failed");
            }
            Some(reason) => {
                error!(route = self.name, %event_id, aggregate_type, aggregate_id, topic, attempt, trace_id, %reason, error = note.text, suppressed, "dead letter");
            }
        }
    }

    pub(super) fn log_unreadable(&self, row: &Unreadable) {
        if let Some(suppressed) = line(&self.event_lines) {
            error!(route = self.name, position = %row.position, error = %row.error, suppressed, "dead letter: row can't be read");
        }
    }

    pub(super) fn log_lost(&self, lane: &Arc<dyn Lane>, events: u64) {
        self.telemetry.leases_lost.increment(events);
        if let Some(suppressed) = line(&self.lost_lines) {
            warn!(route = self.name, lane = %lane.id(), events, suppressed, "settled too late: no longer this relay's events");
        }
    }
}

/// Works the route until told to stop; every lane is released and the publisher closed in the end.
pub(super) async fn run_route(context: Arc<RouteContext>, stop: CancellationToken) {
    let mut lanes: JoinSet<()> = JoinSet::new();
    let mut held: BTreeMap<LaneId, CancellationToken> = BTreeMap::new();
    let mut tasks: BTreeMap<tokio::task::Id, LaneId> = BTreeMap::new();
    let mut failures = 0;
    let mut acquire_at = Instant::now();
    loop {
        tokio::select! { biased;
            () = stop.cancelled() => break,
            Some(ended) = lanes.join_next_with_id() => {
                let task = match &ended {
                    Ok((task, ())) => *task,
                    Err(panic) => {
                        // A defect. Its leases run out by themselves; the others go on.
                        error!(route = context.name, error = %panic, "lane task failed");
                        panic.id()
                    }
                };
                if let Some(lane) = tasks.remove(&task) {
                    held.remove(&lane);
                }
                context.works_lanes(held.len());
                acquire_at = acquire_at.min(Instant::now() + store_pause(&context, 1));
            }
            () = tokio::time::sleep_until(acquire_at) => {
                acquire_at = Instant::now() + match acquire(&context, &stop, &mut held, &mut lanes, &mut tasks).await {
                    Ok(()) => {
                        // A store may give lanes without a word to its database: that ends no other
                        // call's outage.
                        if failures > 0 {
                            context.store_answered();
                        }
                        failures = 0;
                        context.config.acquire_interval
                    }
                    Err(error) => {
                        context.store_failed("acquire", &error);
                        failures += 1;
                        store_pause(&context, failures)
                    }
                };
            }
        }
    }
    while lanes.join_next().await.is_some() {}
    context.publisher.close(Duration::from_millis(500)).await;
}

async fn acquire(
    context: &Arc<RouteContext>,
    stop: &CancellationToken,
    held: &mut BTreeMap<LaneId, CancellationToken>,
    lanes: &mut JoinSet<()>,
    tasks: &mut BTreeMap<tokio::task::Id, LaneId>,
) -> crate::Result<()> {
    let ids: Vec<LaneId> = held.keys().cloned().collect();
    let request = AcquireRequest {
        route: &context.name,
        topics: &context.topics,
        worker: &context.worker,
        held: &ids,
    };
    let acquired = tokio::select! { biased;
        () = stop.cancelled() => return Ok(()),
        acquired = context.store.acquire(&request) => acquired?,
    };
    for id in acquired.surrender.into_iter().collect::<BTreeSet<_>>() {
        if let Some(token) = held.get(&id) {
            token.cancel();
        }
    }
    for lane in acquired.lanes {
        let (id, token) = (lane.id().clone(), stop.child_token());
        let task = LaneTask::new(Arc::clone(context), lane, token.clone());
        let handle = lanes.spawn(task.run());
        tasks.insert(handle.id(), id.clone());
        held.insert(id, token);
    }
    context.works_lanes(held.len());
    Ok(())
}
