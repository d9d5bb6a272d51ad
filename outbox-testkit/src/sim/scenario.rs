//! What a seed stands for: everything that is decided before the run begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use outbox_core::{Event, OrderClass};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use uuid::Uuid;

/// Events that are committed at least.
pub(super) const EVENTS_MIN: usize = 200;
/// Faults that happen at least.
pub(super) const FAULTS_MIN: usize = 3;

/// What a seed is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    /// Anything may fail.
    Chaos,
    /// Settles fail and destinations are down for short, few keys, small batches: much is claimed,
    /// sent and given back at the same time.
    Overlap,
    /// Single events and topics fail, nothing wider: the others must not wait.
    Isolation,
}

/// A route, with a broker of its own.
#[derive(Debug, Clone)]
pub(super) struct RoutePlan {
    pub(super) name: String,
    pub(super) topics: Vec<String>,
    pub(super) order: OrderClass,
    pub(super) strict: bool,
    pub(super) skips: bool,
}

/// A writer's transaction.
#[derive(Debug, Clone)]
pub(super) struct Transaction {
    /// Since the one before.
    pub(super) gap: Duration,
    pub(super) events: Vec<Event>,
    pub(super) commits: bool,
    /// A row that is no event goes with it.
    pub(super) unreadable: Option<(Uuid, String, String)>,
}

/// What happens to the world from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A process dies wherever it is.
    Kill { slot: usize },
    /// A process does nothing for a while, and then goes on as if nothing had happened.
    Stall { slot: usize, time: Duration },
    /// A process is told to stop, and started again.
    Stop { slot: usize },
    /// All are stopped for a while.
    Pause { time: Duration },
    /// The store's clock is set.
    Step { forward: bool, by: Duration },
    /// A route's destination is down.
    DestinationDown { route: usize, time: Duration },
    /// A process can claim, but not settle or renew, or only slowly.
    SettlesFail {
        slot: usize,
        time: Duration,
        slow: bool,
    },
    /// A topic is missing or forbidden.
    TopicDown {
        route: usize,
        topic: usize,
        time: Duration,
    },
    /// An operator puts dead letters back.
    Requeue { share: u32 },
    /// An operator removes dead letters.
    Discard { share: u32 },
}

/// A seed, drawn.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) profile: Profile,
    pub(super) lanes: usize,
    /// The store unblocks a key although a claim of it is in flight.
    pub(super) lax: bool,
    pub(super) slots: usize,
    pub(super) batch_events_max: usize,
    pub(super) batch_bytes_max: usize,
    pub(super) attempts_max: u32,
    pub(super) crashes_max: u32,
    /// How long events wait for a topic that fails.
    pub(super) topic_patience: Duration,
    pub(super) routes: Vec<RoutePlan>,
    pub(super) transactions: Vec<Transaction>,
    /// By time.
    pub(super) actions: Vec<(Duration, Action)>,
    /// A slot dies at its nth await of a call.
    pub(super) crash_points: Vec<(usize, u64)>,
    /// A slot dies when it is at this place for the nth time.
    pub(super) named_crashes: Vec<(usize, &'static str, u64)>,
    /// Of 1,000 calls, how many fail.
    pub(super) store_faults: u32,
    pub(super) publish_faults: u32,
    /// Of 1,000 events, how many are refused for no lasting reason.
    pub(super) flaky: u32,
    /// Events that the broker always refuses.
    pub(super) bad: BTreeSet<Uuid>,
    /// Events that a publisher refuses by itself.
    pub(super) invalid: BTreeSet<Uuid>,
    /// Events that kill the process that sends them.
    pub(super) killers: BTreeSet<Uuid>,
}

/// Where a process may die: before and after the effect of each call.
pub(super) const POINTS: [&str; 17] = [
    "check",
    "acquire",
    "acquire: answer",
    "blocked",
    "blocked: answer",
    "claim",
    "claim: answer",
    "publish",
    "publish: midway",
    "publish: answer",
    "settle",
    "settle: answer",
    "renew",
    "renew: answer",
    "release",
    "release: answer",
    "clean",
];

pub(super) const LEASE: Duration = Duration::from_secs(3);
pub(super) const GRACE: Duration = Duration::from_secs(2);
pub(super) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(3);
pub(super) const RETRY_BASE: Duration = Duration::from_millis(20);
pub(super) const RETRY_CAP: Duration = Duration::from_secs(1);
pub(super) const PAUSE_BASE: Duration = Duration::from_millis(20);
pub(super) const PAUSE_CAP: Duration = Duration::from_millis(500);
pub(super) const INNOCENT_WAIT_MAX: Duration = Duration::from_millis(1000);

impl Scenario {
    pub(super) fn draw(seed: u64) -> Self {
        let mut draw = Draw(StdRng::seed_from_u64(seed));
        let profile = match draw.0.random_range(0..10) {
            0 | 1 => Profile::Isolation,
            2..5 => Profile::Overlap,
            _ => Profile::Chaos,
        };
        let chaos = profile != Profile::Isolation;
        let has_killer = profile == Profile::Chaos && draw.one_in(3);
        // What else is in flight in a process dies with it, and only within a lane does the store see
        // to it that a suspect is alone.
        let routes = draw.routes(if has_killer { 1 } else { 2 });
        let mut scenario = Self {
            profile,
            lanes: if has_killer { 1 } else { draw.within(1, 4) },
            lax: draw.one_in(2),
            slots: draw.within(1, 3),
            batch_events_max: match profile {
                Profile::Overlap => draw.within(1, 6),
                // One at a time, they would wait for each other.
                Profile::Isolation => draw.within(8, 24),
                Profile::Chaos => draw.within(1, 24),
            },
            batch_bytes_max: if draw.one_in(4) { 400 } else { 1 << 20 },
            attempts_max: draw.0.random_range(2..=5),
            crashes_max: if has_killer { 4 } else { 1000 },
            topic_patience: if draw.one_in(3) {
                draw.millis(300, 1500)
            } else {
                Duration::from_secs(24 * 3600)
            },
            routes,
            transactions: Vec::new(),
            actions: Vec::new(),
            crash_points: Vec::new(),
            named_crashes: Vec::new(),
            store_faults: if chaos { draw.0.random_range(0..40) } else { 0 },
            publish_faults: if chaos { draw.0.random_range(0..80) } else { 0 },
            flaky: draw.0.random_range(0..60),
            bad: BTreeSet::new(),
            invalid: BTreeSet::new(),
            killers: BTreeSet::new(),
        };
        draw.transactions(&mut scenario, has_killer);
        draw.actions(&mut scenario, chaos, has_killer);
        scenario
    }

    /// How long writers write.
    pub(super) fn length(&self) -> Duration {
        self.transactions
            .iter()
            .map(|transaction| transaction.gap)
            .sum()
    }

    pub(super) fn sets_clock(&self) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|(_, action)| matches!(action, Action::Step { .. }))
    }

    pub(super) fn unreadable_keys(&self) -> BTreeSet<String> {
        let rows = self
            .transactions
            .iter()
            .filter_map(|of| of.unreadable.as_ref());
        rows.map(|(_, _, key)| key.clone()).collect()
    }

    /// How each event is called in a trace: its number among all that are written.
    pub(super) fn numbers(&self) -> BTreeMap<Uuid, usize> {
        let events = self.transactions.iter().flat_map(|of| &of.events);
        events.map(Event::id).zip(0..).collect()
    }
}

struct Draw(StdRng);

impl Draw {
    fn one_in(&mut self, of: u32) -> bool {
        self.0.random_range(0..of) == 0
    }

    fn within(&mut self, least: usize, most: usize) -> usize {
        self.0.random_range(least..=most)
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.0.random_range(least..=most))
    }

    fn id(&mut self) -> Uuid {
        uuid::Builder::from_random_bytes(self.0.random()).into_uuid()
    }

    fn routes(&mut self, most: usize) -> Vec<RoutePlan> {
        (0..self.within(1, most))
            .map(|route| RoutePlan {
                name: format!("r{route}"),
                topics: (0..self.within(1, 3))
                    .map(|topic| format!("r{route}.t{topic}"))
                    .collect(),
                order: if self.one_in(2) {
                    OrderClass::InFlight
                } else {
                    OrderClass::None
                },
                strict: self.one_in(4),
                skips: self.one_in(3),
            })
            .collect()
    }

    fn transactions(&mut self, scenario: &mut Scenario, has_killer: bool) {
        let overlap = scenario.profile == Profile::Overlap;
        let keys = self.within(2, if overlap { 4 } else { 10 });
        // Bursts make batches, pauses make idle relays.
        let gap_max = if overlap {
            40
        } else {
            [2, 20, 80][self.within(0, 2)]
        };
        let (mut committed, mut number) = (0, 0);
        while committed < EVENTS_MIN {
            let commits = !self.one_in(12);
            let key = self.within(0, keys - 1);
            let count = self.within(1, 3);
            let events: Vec<Event> = (0..count)
                .map(|_| {
                    number += 1;
                    let route = self.within(0, scenario.routes.len() - 1);
                    self.event(&scenario.routes[route], key, number)
                })
                .collect();
            if commits {
                committed += events.len();
                for event in &events {
                    match self.0.random_range(0..400) {
                        0..3 => scenario.bad.insert(event.id()),
                        3 => scenario.invalid.insert(event.id()),
                        4..6 if has_killer => scenario.killers.insert(event.id()),
                        _ => false,
                    };
                }
            }
            let unreadable = (commits && self.one_in(100)).then(|| {
                let topic = scenario.routes[0].topics[0].clone();
                (self.id(), topic, format!("k{key}"))
            });
            let gap = self.millis(0, gap_max);
            scenario.transactions.push(Transaction {
                gap,
                events,
                commits,
                unreadable,
            });
        }
    }

    fn event(&mut self, route: &RoutePlan, key: usize, number: usize) -> Event {
        let topic = self.within(0, route.topics.len() - 1);
        let builder = Event::new(route.topics[topic].as_str(), "Simulated")
            .id(self.id())
            .header("n", number.to_string());
        let builder = if self.one_in(20) {
            builder
        } else {
            builder.key(format!("k{key}"))
        };
        let builder = if self.one_in(30) {
            builder.deliver_after(self.millis(0, 1500))
        } else {
            builder
        };
        let fill = "x".repeat(self.within(0, 40));
        builder
            .bytes(format!("{number} {fill}"))
            .expect("it is within an event's limits")
    }

    fn actions(&mut self, scenario: &mut Scenario, chaos: bool, has_killer: bool) {
        let length = u64::try_from(scenario.length().as_millis()).unwrap_or(u64::MAX) + 1500;
        let overlap = scenario.profile == Profile::Overlap;
        let more = if overlap { 8 } else { 0 };
        for _ in 0..self.within(FAULTS_MIN + 2 + more, FAULTS_MIN + 6 + more) {
            let at = self.millis(0, length);
            let action = self.action(scenario, chaos, has_killer);
            scenario.actions.push((at, action));
        }
        scenario.actions.sort_by_key(|(at, _)| *at);
        // Deaths of innocents beside a killer would be mistaken for its work.
        if chaos && !has_killer {
            for _ in 0..self.within(0, 3) {
                let slot = self.within(0, scenario.slots - 1);
                if self.one_in(2) {
                    let point = POINTS[self.within(0, POINTS.len() - 1)];
                    let nth = self.0.random_range(1..6);
                    scenario.named_crashes.push((slot, point, nth));
                    continue;
                }
                scenario
                    .crash_points
                    .push((slot, self.0.random_range(1..600)));
            }
        }
    }

    fn action(&mut self, scenario: &Scenario, chaos: bool, has_killer: bool) -> Action {
        let route = self.within(0, scenario.routes.len() - 1);
        let slot = self.within(0, scenario.slots - 1);
        let topic = self.within(0, scenario.routes[route].topics.len() - 1);
        let share = self.0.random_range(1..=100);
        let time = self.millis(50, 3000);
        if scenario.profile == Profile::Overlap && !self.one_in(4) {
            return match self.0.random_range(0..3) {
                0 => Action::DestinationDown {
                    route,
                    time: time / 8,
                },
                1 => Action::TopicDown {
                    route,
                    topic,
                    time: time / 8,
                },
                _ => Action::SettlesFail {
                    slot,
                    time: time * 2,
                    slow: self.one_in(2),
                },
            };
        }
        match self.0.random_range(0..if chaos { 18 } else { 5 }) {
            0..3 => {
                let longer = if chaos { 1 } else { 3 };
                let time = time * longer;
                Action::TopicDown { route, topic, time }
            }
            3 => Action::Requeue { share },
            4 => Action::Discard { share },
            5..7 => Action::DestinationDown { route, time },
            7 => Action::Stop { slot },
            14..18 => Action::SettlesFail {
                slot,
                time: self.millis(500, 5000),
                slow: self.one_in(2),
            },
            8 => Action::Pause { time },
            _ if has_killer => Action::Requeue { share },
            9 | 10 => Action::Kill { slot },
            11 | 12 => Action::Stall {
                slot,
                time: self.millis(500, 6000),
            },
            _ => Action::Step {
                forward: self.one_in(2),
                by: self.millis(100, 5000),
            },
        }
    }
}
