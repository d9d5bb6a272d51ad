//! A publisher that answers as a test says, and what the tests share.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{
    Capabilities, DeadFilter, DeadLetters, DeadSummary, Error, ErrorKind, Event, Inspect,
    OrderClass, OutboxStore, Outcome, Page, Publisher, Relay, RelayConfig, RetryPolicy, Route,
    StoredEvent, TopicPattern,
};
use outbox_testkit::{
    eventually,
    memory::{MemoryOptions, MemoryStore},
};
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

type Answer = dyn Fn(&StoredEvent) -> Outcome + Send + Sync;
type Validate = dyn Fn(&StoredEvent) -> outbox_core::Result<()> + Send + Sync;
type Check = dyn Fn() -> outbox_core::Result<()> + Send + Sync;

/// What reached the broker, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) id: Uuid,
    pub(crate) key: Option<String>,
    pub(crate) name: String,
    pub(crate) attempts: u32,
}

pub(crate) struct Script {
    order: OrderClass,
    delay: Duration,
    answer: Box<Answer>,
    check: Box<Check>,
    /// A check made while this is set never ends.
    check_hangs: Option<Arc<AtomicBool>>,
    /// A call with this event never ends.
    hangs_on: Option<&'static str>,
    validate: Box<Validate>,
    pub(crate) delivered: Mutex<Vec<Seen>>,
    /// Every event of every call, delivered or not.
    pub(crate) calls: Mutex<Vec<Vec<Seen>>>,
}

impl Script {
    pub(crate) fn new(
        order: OrderClass,
        answer: impl Fn(&StoredEvent) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Self {
            order,
            delay: Duration::from_millis(1),
            answer: Box::new(answer),
            check: Box::new(|| Ok(())),
            check_hangs: None,
            hangs_on: None,
            validate: Box::new(|_| Ok(())),
            delivered: Mutex::default(),
            calls: Mutex::default(),
        }
    }

    pub(crate) fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub(crate) fn check(
        mut self,
        check: impl Fn() -> outbox_core::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.check = Box::new(check);
        self
    }

    pub(crate) fn check_hanging_while(mut self, hangs: &Arc<AtomicBool>) -> Self {
        self.check_hangs = Some(Arc::clone(hangs));
        self
    }

    pub(crate) fn validate(
        mut self,
        validate: impl Fn(&StoredEvent) -> outbox_core::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.validate = Box::new(validate);
        self
    }

    pub(crate) fn hanging_on(mut self, name: &'static str) -> Self {
        self.hangs_on = Some(name);
        self
    }

    /// How often a call held the event of this name.
    pub(crate) fn tries(&self, name: &str) -> usize {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .flatten()
            .filter(|seen| seen.name == name)
            .count()
    }

    /// Names of delivered events in order, copies included.
    pub(crate) fn names(&self) -> Vec<String> {
        self.delivered
            .lock()
            .unwrap()
            .iter()
            .map(|seen| seen.name.clone())
            .collect()
    }

    /// First sightings by key.
    pub(crate) fn first_by_key(&self) -> BTreeMap<String, Vec<String>> {
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for seen in self.delivered.lock().unwrap().iter() {
            let names = keys
                .entry(seen.key.clone().unwrap_or_default())
                .or_default();
            if !names.contains(&seen.name) {
                names.push(seen.name.clone());
            }
        }
        keys
    }
}

fn seen(event: &StoredEvent) -> Seen {
    let payload = event.payload.clone().unwrap_or_default();
    Seen {
        id: event.id,
        key: event.key.clone(),
        name: String::from_utf8_lossy(&payload).into_owned(),
        attempts: event.attempts,
    }
}

#[async_trait]
impl Publisher for Script {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: self.order,
            ..Capabilities::default()
        }
    }

    async fn check(&self) -> outbox_core::Result<()> {
        if let Some(hangs) = &self.check_hangs
            && hangs.load(Ordering::Relaxed)
        {
            return std::future::pending().await;
        }
        (self.check)()
    }

    fn validate(&self, event: &StoredEvent) -> outbox_core::Result<()> {
        (self.validate)(event)
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        self.calls
            .lock()
            .unwrap()
            .push(events.iter().map(seen).collect());
        sleep(self.delay).await;
        if events
            .iter()
            .any(|event| self.hangs_on == Some(name(event).as_str()))
        {
            std::future::pending::<()>().await;
        }
        let answers: Vec<Outcome> = events.iter().map(&self.answer).collect();
        let landed = events
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_delivered());
        self.delivered
            .lock()
            .unwrap()
            .extend(landed.map(|(event, _)| seen(event)));
        answers
    }
}

/// The payload is the event's name in these tests.
pub(crate) fn name(event: &StoredEvent) -> String {
    seen(event).name
}

pub(crate) fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "publish", "as the test says")
}

pub(crate) fn event(topic: &str, key: Option<&str>, name: &str) -> Event {
    let builder = Event::new(topic, "Tested");
    let builder = match key {
        Some(key) => builder.key(key),
        None => builder,
    };
    builder.bytes(name.to_owned()).unwrap()
}

/// Commits events of (topic, key, name), each in its own transaction.
pub(crate) fn commit(store: &MemoryStore, events: &[(&str, &str, &str)]) {
    for (topic, key, name) in events {
        let mut tx = store.begin();
        tx.enqueue(&event(topic, Some(key), name));
        tx.commit();
    }
}

pub(crate) fn one_lane() -> MemoryStore {
    MemoryStore::new(MemoryOptions {
        lanes: 1,
        ..MemoryOptions::default()
    })
}

/// A relay that runs in the background until the test ends it.
pub(crate) struct Running {
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<outbox_core::Result<()>>,
    pub(crate) health: outbox_core::Health,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

pub(crate) fn quick_policy() -> RetryPolicy {
    RetryPolicy {
        attempts_max: 3,
        ..RetryPolicy::default()
    }
}

pub(crate) fn run(store: &MemoryStore, publisher: &Arc<Script>, policy: RetryPolicy) -> Running {
    run_route(
        store,
        Route::new("default", publisher.clone()).policy(TopicPattern::All, policy),
    )
}

pub(crate) fn run_route(store: &MemoryStore, route: Route) -> Running {
    run_with(store, route, RelayConfig::default())
}

pub(crate) fn run_with(store: &MemoryStore, route: Route, config: RelayConfig) -> Running {
    run_routes(store, [route], config)
}

pub(crate) fn run_routes(
    store: &MemoryStore,
    routes: impl IntoIterator<Item = Route>,
    config: RelayConfig,
) -> Running {
    run_on(Arc::new(store.clone()), routes, config)
}

pub(crate) fn run_on(
    store: Arc<dyn OutboxStore>,
    routes: impl IntoIterator<Item = Route>,
    config: RelayConfig,
) -> Running {
    let mut builder = Relay::builder(store).config(config).seed(7);
    for route in routes {
        builder = builder.route(route);
    }
    let relay = builder.build().unwrap();
    let (stop, health) = (CancellationToken::new(), relay.health());
    Running {
        task: tokio::spawn(relay.run(stop.clone())),
        stop,
        health,
    }
}

/// Waits, in the test's time, until nothing but dead and held events is left, twice in a row: what
/// an operator or a dead event set free is taken up by the lane's owner a little later.
pub(crate) async fn drained(store: &MemoryStore) {
    for _ in 0..2 {
        sleep(Duration::from_millis(50)).await;
        let left = eventually(Duration::from_secs(3600), async || {
            let found = store.inspect(1000).await.unwrap();
            (found.pending.value + found.scheduled.value + found.in_flight.value == 0).then_some(())
        });
        assert!(left.await.is_some(), "{:?}", store.inspect(1000).await);
    }
}

pub(crate) async fn dead(store: &MemoryStore) -> Vec<DeadSummary> {
    store
        .list(
            &DeadFilter::default(),
            Page {
                after: None,
                limit: 100,
            },
        )
        .await
        .unwrap()
}
