//! The store as one process uses it: each call may be interrupted before and after its effect, and
//! what it did is written down.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{
    AcquireRequest, Acquired, Batch, BatchSource, BatchToken, ClaimLimit, CleanRequest, Cleaned,
    DeadFilter, DeadGroup, DeadLetter, DeadLetters, DeadSummary, ErrorKind, Failing, Inspect,
    Inspection, Lane, LaneId, Migrated, OutboxStore, Page, Position, Result, Retention, Settled,
    Settlement, Store,
};
use rand::RngExt as _;
use uuid::Uuid;

use super::world::World;
use crate::{
    faulty::{FaultyStore, StoreCall, StoreFault},
    invariants::{ClaimedEvent, Fact, Written},
    memory::MemoryStore,
};

/// The store of a process, with its faults.
pub(super) fn store_of(world: &Arc<World>, process: u32) -> Arc<dyn OutboxStore> {
    let watched = Watched {
        world: Arc::clone(world),
        inner: world.store.clone(),
        process,
    };
    let faulty = FaultyStore::new(Arc::new(watched));
    let world = Arc::clone(world);
    faulty.script().rule(move |call, _| {
        if matches!(call, StoreCall::Settle | StoreCall::Renew)
            && let Some(slow) = world.settles_fail(process)
        {
            world.store_failed(process);
            return Some(if slow {
                let millis = world.state().random.random_range(50..1500);
                StoreFault::Slow(Duration::from_millis(millis))
            } else {
                StoreFault::Fail(ErrorKind::Unavailable)
            });
        }
        let fault = draw(&world)?;
        world.store_failed(process);
        world.fault(format!("p{process} {call:?}: {fault:?}"));
        Some(fault)
    });
    Arc::new(faulty)
}

fn draw(world: &World) -> Option<StoreFault> {
    let mut state = world.state();
    if state.calm || state.random.random_range(0..1000) >= world.scenario.store_faults {
        return None;
    }
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::ConnectionLost,
        ErrorKind::Timeout,
    ];
    let kind = kinds[state.random.random_range(0..3)];
    let delay = Duration::from_millis(state.random.random_range(1..4500));
    Some(match state.random.random_range(0..6) {
        0 | 1 => StoreFault::Fail(kind),
        2 | 3 => StoreFault::LoseAnswer(kind),
        4 => StoreFault::Slow(delay),
        _ => StoreFault::SlowAnswer(delay),
    })
}

struct Watched {
    world: Arc<World>,
    inner: MemoryStore,
    process: u32,
}

impl Watched {
    fn route(&self, name: &str) -> usize {
        let routes = self.world.scenario.routes.iter();
        let found = routes.enumerate().find(|(_, route)| route.name == name);
        found.map_or(0, |(index, _)| index)
    }
}

#[async_trait]
impl Store for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn ordered(&self) -> bool {
        self.inner.ordered()
    }

    async fn migrate(&self) -> Result<Migrated> {
        self.inner.migrate().await
    }

    async fn check(&self) -> Result<()> {
        self.world.point(self.process, "check").await;
        self.inner.check().await
    }

    async fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Acquired> {
        let (world, process) = (&self.world, self.process);
        world.point(process, "acquire").await;
        let at = self.inner.clock();
        let mut acquired = self.inner.acquire(request).await?;
        let route = self.route(request.route);
        let name = |id: &LaneId| Arc::from(format!("{}/{id}", request.route));
        for id in request.held {
            world.fact(
                route,
                Fact::Kept {
                    process,
                    lane: name(id),
                    at,
                },
            );
        }
        for id in &acquired.surrender {
            let lane = name(id);
            world.fact(route, Fact::Surrendered { process, lane });
        }
        for lane in &mut acquired.lanes {
            let name: Arc<str> = name(lane.id());
            world.fact(
                route,
                Fact::Acquired {
                    process,
                    lane: Arc::clone(&name),
                    at,
                },
            );
            *lane = Arc::new(WatchedLane {
                world: Arc::clone(world),
                inner: Arc::clone(lane),
                process,
                route,
                name,
                state: Mutex::default(),
            });
        }
        world.point(process, "acquire: answer").await;
        Ok(acquired)
    }

    async fn wait(&self, timeout: Duration) {
        self.inner.wait(timeout).await;
        self.world.point(self.process, "wait").await;
    }
}

/// Names a row that is no event, whose id a claim does not tell.
fn stand_in(position: Position) -> Uuid {
    Uuid::from_u64_pair(0x6e6f_6576_656e_7400, position.0.unsigned_abs())
}

struct WatchedLane {
    world: Arc<World>,
    inner: Arc<dyn Lane>,
    process: u32,
    route: usize,
    name: Arc<str>,
    state: Mutex<LaneState>,
}

#[derive(Default)]
struct LaneState {
    /// The events of each claim, by position.
    claims: BTreeMap<BatchToken, BTreeMap<i64, Uuid>>,
    /// A repeated settle gets the first one's answer, and changes nothing.
    settled: BTreeSet<BatchToken>,
}

impl WatchedLane {
    async fn point(&self, point: &'static str) {
        self.world.point(self.process, point).await;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

#[async_trait]
impl Lane for WatchedLane {
    fn id(&self) -> &LaneId {
        self.inner.id()
    }

    fn lease(&self) -> Duration {
        self.inner.lease()
    }

    async fn blocked(&self) -> Result<Vec<String>> {
        self.point("blocked").await;
        let blocked = self.inner.blocked().await;
        if let Ok(keys) = &blocked {
            let (lane, keys) = (self.lane(), keys.clone());
            self.world.fact(self.route, Fact::Blocked { lane, keys });
        }
        self.point("blocked: answer").await;
        blocked
    }

    async fn claim(&self, limit: ClaimLimit) -> Result<Batch> {
        self.point("claim").await;
        let at = self.world.store.clock();
        let batch = self.inner.claim(limit).await?;
        let (process, lane) = (self.process, self.lane());
        if batch.is_empty() {
            self.world
                .fact(self.route, Fact::Kept { process, lane, at });
        } else {
            let scenario = &self.world.scenario;
            for event in &batch.events {
                // It dies before it is sent, or may: when its topic fails still.
                let impatient = event
                    .failing_for
                    .is_some_and(|time| time >= scenario.topic_patience);
                if event.attempts > scenario.attempts_max
                    || event.crashes >= scenario.crashes_max
                    || impatient
                {
                    self.world.skipped(self.route, event.id);
                }
            }
            let unreadable: Vec<_> = batch
                .unreadable
                .iter()
                .map(|row| (stand_in(row.position), row.key.clone()))
                .collect();
            let rows = batch.unreadable.iter().map(|row| row.position);
            let positions = batch
                .events
                .iter()
                .map(|event| (event.position.0, event.id))
                .chain(rows.map(|position| (position.0, stand_in(position))));
            self.state().claims.insert(batch.token, positions.collect());
            let events = batch.events.iter().map(|event| ClaimedEvent {
                id: event.id,
                attempts: event.attempts,
                crashes: event.crashes,
                bytes: event.byte_len(),
                failing_for: event.failing_for,
            });
            let claimed = Fact::Claimed {
                process,
                lane,
                token: batch.token,
                stream: batch.source == BatchSource::Stream,
                at,
                limit,
                events: events.collect(),
                unreadable,
            };
            self.world.fact(self.route, claimed);
        }
        self.point("claim: answer").await;
        Ok(batch)
    }

    async fn settle(&self, token: BatchToken, settlements: &[Settlement]) -> Result<Settled> {
        self.point("settle").await;
        let at = self.world.store.clock();
        let settled = self.inner.settle(token, settlements).await;
        if let Err(error) = &settled
            && error.kind() == ErrorKind::Internal
        {
            let (process, what) = (self.process, error.to_string());
            self.world.fact(self.route, Fact::Misused { process, what });
        }
        let settled = settled?;
        let first = {
            let mut state = self.state();
            settled.applied > 0 && state.settled.insert(token)
        };
        if first {
            let ids = self.state().claims.get(&token).cloned().unwrap_or_default();
            let route = &self.world.scenario.routes[self.route].name;
            let verdicts = settlements.iter().filter_map(|of| {
                Some(Written {
                    id: *ids.get(&of.position.0)?,
                    verdict: of.verdict.clone(),
                    stands: self.world.store.standing(route, of.position),
                })
            });
            let fact = Fact::Settled {
                process: self.process,
                lane: self.lane(),
                token,
                verdicts: verdicts.collect(),
                applied: settled.applied,
                at,
                unblocked: settled.unblocked.clone(),
            };
            self.world.settled(self.route, fact);
        }
        self.point("settle: answer").await;
        Ok(settled)
    }

    async fn renew(&self, tokens: &[BatchToken]) -> Result<Vec<BatchToken>> {
        self.point("renew").await;
        let at = self.world.store.clock();
        let lost = self.inner.renew(tokens).await?;
        let kept = tokens.iter().filter(|token| !lost.contains(token));
        let renewed = Fact::Renewed {
            process: self.process,
            lane: self.lane(),
            tokens: kept.copied().collect(),
            at,
        };
        self.world.fact(self.route, renewed);
        self.point("renew: answer").await;
        Ok(lost)
    }

    async fn release(&self) -> Result<()> {
        self.point("release").await;
        self.inner.release().await?;
        let (process, lane) = (self.process, self.lane());
        self.world
            .fact(self.route, Fact::Released { process, lane });
        self.point("release: answer").await;
        Ok(())
    }
}

#[async_trait]
impl DeadLetters for Watched {
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>> {
        self.inner.list(filter, page).await
    }

    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>> {
        self.inner.get(event_id).await
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        self.inner.count(filter).await
    }

    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>> {
        self.inner.groups(filter, limit).await
    }

    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        self.inner.requeue(filter, limit).await
    }

    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        self.inner.discard(filter, limit).await
    }
}

#[async_trait]
impl Inspect for Watched {
    async fn inspect(&self, count_max: u32) -> Result<Inspection> {
        self.inner.inspect(count_max).await
    }

    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing> {
        self.inner.failing(rows_max, topics_max).await
    }
}

#[async_trait]
impl Retention for Watched {
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned> {
        self.world.point(self.process, "clean").await;
        self.inner.clean(request).await
    }

    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned> {
        self.inner.removable(request).await
    }
}
