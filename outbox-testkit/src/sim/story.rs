//! A run from the first event to the verdict.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    sync::{Arc, Once},
    time::Duration,
};

use outbox_core::{DeadFilter, DeadLetters, Event, Inspect, Page};
use rand::RngExt as _;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use uuid::Uuid;

use super::{
    Mutation,
    coverage::Coverage,
    process::{Orders, keep},
    scenario::{Action, EVENTS_MIN, FAULTS_MIN, LEASE, Scenario},
    trace::trace,
    world::World,
};
use crate::{
    invariants::{Fact, History, KeyOrder, check},
    memory::{MemoryOptions, MemoryStore},
};

/// How long the world may take, once nothing fails any more, until nothing is left to be sent.
const DRAIN_MAX: Duration = Duration::from_secs(300);

/// What came of a seed.
#[derive(Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// Events that were committed.
    pub events: usize,
    /// Faults that happened.
    pub faults: u64,
    /// Facts that were judged.
    pub facts: usize,
    /// Where processes died.
    pub coverage: Coverage,
    /// What is wrong, if anything is.
    pub failure: Option<Failure>,
    scenario: Scenario,
    histories: Vec<History>,
}

impl Run {
    /// Every step, in the order of time.
    pub fn trace(&self) -> String {
        trace(&self.scenario, &self.histories)
    }
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The invariants that were broken.
    pub invariants: BTreeSet<&'static str>,
    /// How.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Default)]
struct Wrong(BTreeSet<&'static str>, String);

impl Wrong {
    fn add(&mut self, invariant: &'static str, text: &str) {
        self.0.insert(invariant);
        self.1.push_str(text);
        self.1.push('\n');
    }

    /// Events by the numbers that they have in the trace.
    fn failure(self, scenario: &Scenario) -> Option<Failure> {
        let Self(invariants, mut text) = self;
        if !text.is_empty() {
            for (id, number) in scenario.numbers() {
                text = text.replace(&id.to_string(), &format!("#{number}"));
            }
        }
        (!text.is_empty()).then_some(Failure { invariants, text })
    }
}

/// Runs a seed on a world of its own, on this thread. The same seed and mutation give the same run.
///
/// # Panics
/// When a runtime can't be made.
pub fn run(seed: u64, mutation: Option<Mutation>) -> Run {
    silence_scripted_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing");
    runtime.block_on(story(seed, mutation))
}

/// What panics on purpose, thousands of times, is in the history; everything else is told as before.
fn silence_scripted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            if !text.starts_with("scripted panic") {
                told(info);
            }
        }));
    });
}

async fn story(seed: u64, mutation: Option<Mutation>) -> Run {
    let scenario = Scenario::draw(seed);
    let store = MemoryStore::new(MemoryOptions {
        lanes: scenario.lanes,
        lease: LEASE,
        lax: scenario.lax,
        mutation: match mutation {
            Some(Mutation::Store(mutation)) => Some(mutation),
            _ => None,
        },
    });
    let world = World::new(seed, scenario, store);
    let orders = Arc::new(Orders::default());
    let mut slots = JoinSet::new();
    for slot in 0..world.scenario.slots {
        slots.spawn(keep(
            Arc::clone(&world),
            slot,
            mutation,
            Arc::clone(&orders),
        ));
    }
    let mut wrong = Wrong::default();
    let unrest = async { tokio::join!(write(&world), act(&world, &orders)) };
    tokio::select! { biased;
        ended = slots.join_next() => wrong.add("I2", &format!("a slot ended: {ended:?}")),
        _ = unrest => judge(&world, &mut wrong).await,
    }
    orders.tell(|told| told.over = true);
    while let Some(ended) = slots.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(what)) => wrong.add("I2", &what),
            Err(panic) => wrong.add("I2", &format!("a slot panicked: {panic}")),
        }
    }
    conclude(seed, &world, wrong)
}

/// What must hold when nothing fails any more, and again when an operator has mended the rest.
async fn judge(world: &World, wrong: &mut Wrong) {
    sleep(Duration::from_millis(500)).await;
    world.calm();
    if !drained(world, wrong).await {
        return;
    }
    at_rest(world, wrong).await;
    world.state().healed = true;
    let numbers = world.scenario.numbers();
    discard(world, some(world, 30).await).await;
    // Attempts that were lost with leases count: what has none left dies when its turn comes, and is
    // requeued then.
    for _ in 0..world.scenario.transactions.len() {
        // What is no event dies again, whoever requeues it.
        let mut unreadable: Vec<Uuid> = ids_of(dead(world).await).collect();
        unreadable.retain(|id| !numbers.contains_key(id));
        discard(world, unreadable).await;
        requeue(world, ids_of(dead(world).await).collect()).await;
        if !drained(world, wrong).await {
            return;
        }
        if dead(world).await.is_empty() {
            break;
        }
    }
    let left = dead(world).await.len();
    if left > 0 {
        wrong.add("I2", &format!("{left} events died although nothing failed"));
    }
}

/// Writers: one transaction after another.
async fn write(world: &World) {
    for transaction in &world.scenario.transactions {
        sleep(transaction.gap).await;
        let mut tx = world.store.begin();
        for event in &transaction.events {
            tx.enqueue(event);
        }
        if transaction.commits {
            world.committed(&transaction.events);
            tx.commit();
        } else {
            world.rolled_back(&transaction.events);
            tx.rollback();
        }
        if let Some((id, topic, key)) = &transaction.unreadable {
            world
                .store
                .insert_unreadable(*id, topic, Some(key), "simulated");
        }
    }
}

/// What comes from outside, at its time.
async fn act(world: &World, orders: &Orders) {
    let began = Instant::now();
    for (at, action) in &world.scenario.actions {
        sleep_until(began + *at).await;
        let now = Instant::now();
        let stop = |slots: std::ops::Range<usize>, pause: Option<Duration>| {
            orders.tell(|told| {
                for slot in slots {
                    *told.stops.entry(slot).or_default() += 1;
                }
                told.paused_until = pause.map(|time| now + time);
            });
        };
        match *action {
            Action::Kill { slot } => {
                if let Some(process) = world.life_of(slot) {
                    world.kill(process, "any await");
                }
            }
            Action::Stall { slot, time } => {
                if let Some(process) = world.life_of(slot) {
                    world.stall(process, time);
                }
            }
            Action::SettlesFail { slot, time, slow } => {
                if let Some(process) = world.life_of(slot) {
                    world.fail_settles(process, time, slow);
                }
            }
            Action::Stop { slot } => {
                world.fault(format!("slot {slot} is to stop"));
                stop(slot..slot + 1, None);
            }
            Action::Pause { time } => {
                world.fault(format!("all are to stop for {time:?}"));
                stop(0..world.scenario.slots, Some(time));
            }
            Action::Step { forward, by } => {
                let sign = if forward { '+' } else { '-' };
                world.fault(format!("the store's clock is set {sign}{by:?}"));
                world.store.step_clock(forward, by);
            }
            Action::DestinationDown { route, time } => {
                world.fault(format!("r{route} is down for {time:?}"));
                world.state().destinations_down[route] = Some(now + time);
            }
            Action::TopicDown { route, topic, time } => {
                let topic = world.scenario.routes[route].topics[topic].clone();
                world.fault(format!("topic {topic} is down for {time:?}"));
                world.state().topics_down.insert(topic, now + time);
            }
            Action::Requeue { share } => {
                world.fault(format!("an operator requeues {share} %"));
                requeue(world, some(world, share).await).await;
            }
            Action::Discard { share } => {
                world.fault(format!("an operator discards {share} %"));
                discard(world, some(world, share).await).await;
            }
        }
    }
}

/// A part of the dead letters, by chance.
async fn some(world: &World, share: u32) -> Vec<Uuid> {
    let dead = dead(world).await;
    let mut state = world.state();
    ids_of(dead)
        .filter(|_| state.random.random_range(0..100) < share)
        .collect()
}

fn ids_of(letters: Vec<outbox_core::DeadSummary>) -> impl Iterator<Item = Uuid> {
    letters.into_iter().map(|letter| letter.event_id)
}

async fn requeue(world: &World, ids: Vec<Uuid>) {
    for id in &ids {
        world.fact_of_all(&Fact::Requeued(*id));
    }
    if !ids.is_empty() {
        let filter = DeadFilter {
            ids,
            ..DeadFilter::default()
        };
        let _ = world.store.requeue(&filter, u32::MAX).await;
    }
}

async fn discard(world: &World, ids: Vec<Uuid>) {
    for id in &ids {
        world.discarded(*id);
    }
    if !ids.is_empty() {
        let filter = DeadFilter {
            ids,
            ..DeadFilter::default()
        };
        let _ = world.store.discard(&filter, u32::MAX).await;
    }
}

async fn dead(world: &World) -> Vec<outbox_core::DeadSummary> {
    let page = Page {
        after: None,
        limit: u32::MAX,
    };
    let listed = world.store.list(&DeadFilter::default(), page).await;
    listed.unwrap_or_default()
}

/// Waits until nothing but dead and held events is left, twice in a row: what an operator or a dead
/// event set free is taken up by the lane's owner a little later.
async fn drained(world: &World, wrong: &mut Wrong) -> bool {
    let began = Instant::now();
    let mut quiet = 0;
    while quiet < 2 {
        sleep(Duration::from_millis(100)).await;
        let Ok(found) = world.store.inspect(u32::MAX).await else {
            continue;
        };
        let left = found.pending.value + found.scheduled.value + found.in_flight.value;
        quiet = if left == 0 && world.all_worked() {
            quiet + 1
        } else {
            0
        };
        if began.elapsed() > DRAIN_MAX {
            wrong.add("I2", &format!("{left} events are stuck: {found:?}"));
            return false;
        }
    }
    true
}

/// I2 before an operator mends anything: what is not delivered is dead, or waits behind a dead one.
async fn at_rest(world: &World, wrong: &mut Wrong) {
    let letters = dead(world).await;
    let state = world.state();
    for (plan, history) in world.scenario.routes.iter().zip(&state.histories) {
        let of_route = letters
            .iter()
            .filter(|letter| plan.topics.contains(&letter.topic));
        let (dead, keys): (BTreeSet<_>, BTreeSet<_>) = of_route
            .map(|letter| (letter.event_id, letter.key.clone()))
            .unzip();
        let waits = |event: &&Event| {
            !plan.skips
                && event
                    .key()
                    .is_some_and(|key| keys.contains(&Some(key.to_owned())))
        };
        let at_rest = History {
            committed: history.committed.clone(),
            rolled_back: history.rolled_back.clone(),
            seen: history.seen.clone(),
            discarded: history.discarded.clone(),
            held: history
                .committed
                .iter()
                .filter(waits)
                .map(Event::id)
                .collect(),
            dead,
            ..History::default()
        };
        if let Err(violations) = check(&at_rest, KeyOrder::Unordered) {
            wrong.add("I2", &format!("{} at rest: {violations}", plan.name));
        }
    }
}

fn conclude(seed: u64, world: &World, mut wrong: Wrong) -> Run {
    let mut state = world.state();
    let histories = std::mem::take(&mut state.histories);
    let mut coverage = Coverage::default();
    for (plan, history) in world.scenario.routes.iter().zip(&histories) {
        coverage.add(&Coverage::of(history));
        if let Err(violations) = check(history, KeyOrder::Hold) {
            for violation in &violations.0 {
                wrong.0.insert(violation.invariant());
            }
            let _ = write!(wrong.1, "{}: {violations}", plan.name);
        }
    }
    let events: usize = histories.iter().map(|of| of.committed.len()).sum();
    if events < EVENTS_MIN {
        wrong.add("scenario", &format!("only {events} events were committed"));
    }
    let faults = state.faults;
    if usize::try_from(faults).unwrap_or(usize::MAX) < FAULTS_MIN {
        wrong.add("scenario", &format!("only {faults} faults happened"));
    }
    Run {
        seed,
        events,
        faults,
        facts: histories.iter().map(|of| of.facts.len()).sum(),
        coverage,
        failure: wrong.failure(&world.scenario),
        scenario: world.scenario.clone(),
        histories,
    }
}
