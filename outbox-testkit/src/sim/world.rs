//! What all parts of a run share: the random source of its faults, who is alive, what happened.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outbox_core::{Event, StoredEvent, Verdict};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::scenario::{
    GRACE, INNOCENT_WAIT_MAX, LEASE, PAUSE_BASE, PAUSE_CAP, Profile, RETRY_BASE, RETRY_CAP,
    RoutePlan, Scenario,
};
use crate::{
    invariants::{Fact, History, Rules, Sighting},
    memory::MemoryStore,
};

/// The world of one seed.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) store: MemoryStore,
    started: Instant,
    state: Mutex<State>,
}

/// A relay process: one life of a slot.
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) death: CancellationToken,
    stalled_until: Option<Instant>,
    /// Until when its settles and renewals fail, or are only slow.
    settles_fail: Option<(Instant, bool)>,
    /// When a call of the store last failed on purpose.
    store_failed: Option<Instant>,
}

pub(super) struct State {
    pub(super) random: StdRng,
    /// Nothing fails any more.
    pub(super) calm: bool,
    /// An operator mended what was wrong with single events.
    pub(super) healed: bool,
    pub(super) histories: Vec<History>,
    pub(super) processes: Vec<Process>,
    pub(super) destinations_down: Vec<Option<Instant>>,
    pub(super) topics_down: BTreeMap<String, Instant>,
    /// How many more events fail more often, after a panic.
    pub(super) shaken: u32,
    /// Faults that happened.
    pub(super) faults: u64,
    /// Awaits of each slot's calls so far.
    points: Vec<u64>,
    named_points: BTreeMap<(usize, &'static str), u64>,
    calls: u64,
}

/// What a call does at a place where it may be interrupted.
enum Next {
    Go,
    Yield(u32),
    Sleep(Duration),
    StallUntil(Instant),
    Die,
}

impl World {
    pub(super) fn new(seed: u64, scenario: Scenario, store: MemoryStore) -> Arc<Self> {
        let rules = Rules {
            attempts_max: scenario.attempts_max,
            crashes_max: scenario.crashes_max,
            retry_base: RETRY_BASE,
            retry_cap: RETRY_CAP,
            pause_base: PAUSE_BASE,
            pause_cap: PAUSE_CAP,
            topic_patience: scenario.topic_patience,
            skips: false,
            batch_events_max: scenario.batch_events_max,
            batch_bytes_max: scenario.batch_bytes_max,
            lease: LEASE,
            clock_steps: scenario.sets_clock(),
            grace: GRACE,
            killers: scenario.killers.clone(),
            unreadable_keys: scenario.unreadable_keys(),
            innocent_wait_max: (scenario.profile == Profile::Isolation)
                .then_some(INNOCENT_WAIT_MAX),
        };
        let routes = scenario.routes.len();
        let history = |plan: &RoutePlan| History {
            rules: Rules {
                skips: plan.skips,
                ..rules.clone()
            },
            ..History::default()
        };
        let state = State {
            // Another stream than the scenario's.
            random: StdRng::seed_from_u64(seed ^ 0x5eed_5eed_5eed_5eed),
            calm: false,
            healed: false,
            histories: scenario.routes.iter().map(history).collect(),
            processes: Vec::new(),
            destinations_down: vec![None; routes],
            shaken: 0,
            topics_down: BTreeMap::new(),
            faults: 0,
            points: vec![0; scenario.slots],
            named_points: BTreeMap::new(),
            calls: 0,
        };
        Arc::new(Self {
            scenario,
            store,
            started: Instant::now(),
            state: Mutex::new(state),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fact(&self, route: usize, fact: Fact) {
        let moment = self.started.elapsed();
        self.state().histories[route].facts.push((moment, fact));
    }

    /// A fact about all routes.
    pub(super) fn fact_of_all(&self, fact: &Fact) {
        for route in 0..self.scenario.routes.len() {
            self.fact(route, fact.clone());
        }
    }

    /// Something failed on purpose.
    pub(super) fn fault(&self, what: String) {
        self.state().faults += 1;
        self.fact_of_all(&Fact::Fault(what));
    }

    /// A new life of a slot; its number.
    pub(super) fn begin(&self, slot: usize) -> u32 {
        let mut state = self.state();
        state.processes.push(Process {
            slot,
            death: CancellationToken::new(),
            stalled_until: None,
            settles_fail: None,
            store_failed: None,
        });
        u32::try_from(state.processes.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn death_of(&self, process: u32) -> CancellationToken {
        self.state().processes[process as usize].death.clone()
    }

    pub(super) fn is_dead(&self, process: u32) -> bool {
        self.state().processes[process as usize]
            .death
            .is_cancelled()
    }

    /// The life that a slot leads now.
    pub(super) fn life_of(&self, slot: usize) -> Option<u32> {
        let state = self.state();
        let last = state.processes.iter().rposition(|of| of.slot == slot)?;
        u32::try_from(last).ok()
    }

    /// A process dies: from here on it does nothing that anyone could see.
    pub(super) fn kill(&self, process: u32, point: &'static str) {
        let death = self.death_of(process);
        if !death.is_cancelled() {
            self.state().faults += 1;
            self.fact_of_all(&Fact::Died { process, point });
            death.cancel();
        }
    }

    pub(super) fn stall(&self, process: u32, time: Duration) {
        self.state().processes[process as usize].stalled_until = Some(Instant::now() + time);
        self.fault(format!("p{process} stalls for {time:?}"));
        self.fact_of_all(&Fact::Hampered { process });
    }

    pub(super) fn fail_settles(&self, process: u32, time: Duration, slow: bool) {
        let until = Instant::now() + time;
        self.state().processes[process as usize].settles_fail = Some((until, slow));
        let how = if slow { "slowly" } else { "not" };
        self.fault(format!("p{process} settles {how} for {time:?}"));
    }

    /// Whether settles fail now, or are only slow.
    pub(super) fn settles_fail(&self, process: u32) -> Option<bool> {
        let state = self.state();
        let (until, slow) = state.processes[process as usize].settles_fail?;
        (!state.calm && until > Instant::now()).then_some(slow)
    }

    pub(super) fn store_failed(&self, process: u32) {
        self.fact_of_all(&Fact::Hampered { process });
        self.state().processes[process as usize].store_failed = Some(Instant::now());
    }

    /// Whether a call of the store failed so recently that a lane may have been given up for it.
    pub(super) fn may_have_given_up(&self, process: u32) -> bool {
        let failed = self.state().processes[process as usize].store_failed;
        failed.is_some_and(|failed| failed.elapsed() < 3 * LEASE)
    }

    pub(super) fn call(&self) -> u64 {
        let mut state = self.state();
        state.calls += 1;
        state.calls
    }

    /// An await within a call of a process: here others run, time passes, the process stalls or dies.
    pub(super) async fn point(&self, process: u32, point: &'static str) {
        loop {
            match self.next(process, point) {
                Next::Go => return,
                Next::Yield(times) => {
                    for _ in 0..times {
                        tokio::task::yield_now().await;
                    }
                    return;
                }
                Next::Sleep(time) => {
                    tokio::time::sleep(time).await;
                    if !self.is_held_up(process) {
                        return;
                    }
                }
                Next::StallUntil(end) => tokio::time::sleep_until(end).await,
                Next::Die => {
                    self.kill(process, point);
                    return std::future::pending().await;
                }
            }
        }
    }

    fn is_held_up(&self, process: u32) -> bool {
        let state = self.state();
        let process = &state.processes[process as usize];
        process.death.is_cancelled()
            || process
                .stalled_until
                .is_some_and(|end| end > Instant::now())
    }

    fn next(&self, process: u32, point: &'static str) -> Next {
        let mut state = self.state();
        let of = &state.processes[process as usize];
        if of.death.is_cancelled() {
            return Next::Die;
        }
        if let Some(end) = of.stalled_until.filter(|end| *end > Instant::now()) {
            return Next::StallUntil(end);
        }
        let slot = of.slot;
        state.points[slot] += 1;
        let crash = (slot, state.points[slot]);
        let named = state.named_points.entry((slot, point)).or_default();
        *named += 1;
        let named = (slot, point, *named);
        let scenario = &self.scenario;
        let dies =
            scenario.crash_points.contains(&crash) || scenario.named_crashes.contains(&named);
        if dies && !state.calm {
            return Next::Die;
        }
        match state.random.random_range(0..100) {
            0..55 => Next::Go,
            55..85 => Next::Yield(state.random.random_range(1..4)),
            _ => Next::Sleep(Duration::from_millis(state.random.random_range(0..15))),
        }
    }

    /// Writers are about to commit these.
    pub(super) fn committed(&self, events: &[Event]) {
        for (route, plan) in self.scenario.routes.iter().enumerate() {
            let of_route: Vec<&Event> = events
                .iter()
                .filter(|event| plan.topics.iter().any(|topic| topic == event.topic()))
                .collect();
            if of_route.is_empty() {
                continue;
            }
            let ids = of_route.iter().map(|event| event.id()).collect();
            self.fact(route, Fact::Committed(ids));
            let mut state = self.state();
            let history = &mut state.histories[route];
            for event in of_route {
                if event.deliver_after().is_some() {
                    history.passable.insert(event.id(), 0);
                }
                history.committed.push(event.clone());
            }
        }
    }

    pub(super) fn rolled_back(&self, events: &[Event]) {
        let ids = events.iter().map(Event::id);
        for history in &mut self.state().histories {
            history.rolled_back.extend(ids.clone());
        }
    }

    /// A message is in the topic.
    pub(super) fn landed(&self, route: usize, event: &StoredEvent) {
        self.fact(route, Fact::Landed(event.id));
        let sighting = Sighting::from(event.clone());
        self.state().histories[route].seen.push(sighting);
    }

    /// The verdicts of a batch are in the store.
    pub(super) fn settled(&self, route: usize, fact: Fact) {
        if let Fact::Settled { verdicts, .. } = &fact {
            for written in verdicts {
                if matches!(written.verdict, Verdict::Dead { .. }) {
                    self.skipped(route, written.id);
                }
            }
        }
        self.fact(route, fact);
    }

    /// Later events of its key need not wait for it, if that is the route's policy.
    pub(super) fn skipped(&self, route: usize, id: Uuid) {
        if self.scenario.routes[route].skips {
            let history = &mut self.state().histories[route];
            let seen = history.seen.len();
            history.passable.entry(id).or_insert(seen);
        }
    }

    pub(super) fn discarded(&self, id: Uuid) {
        self.fact_of_all(&Fact::Discarded(id));
        for history in &mut self.state().histories {
            let seen = history.seen.len();
            history.discarded.insert(id);
            history.passable.entry(id).or_insert(seen);
        }
    }

    /// Whether every route was worked by some process: before that the store does not know of it.
    pub(super) fn all_worked(&self) -> bool {
        let state = self.state();
        state.histories.iter().all(|history| {
            let mut facts = history.facts.iter();
            facts.any(|(_, fact)| matches!(fact, Fact::Acquired { .. }))
        })
    }

    /// Nothing fails from here on.
    pub(super) fn calm(&self) {
        let mut state = self.state();
        state.calm = true;
        state.destinations_down.fill(None);
        state.topics_down.clear();
        let now = Instant::now();
        for process in &mut state.processes {
            process.stalled_until = process.stalled_until.map(|end| end.min(now));
        }
    }
}
