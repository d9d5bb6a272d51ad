//! The brokers: what lands, what is refused and how wide, and the publishers of a process.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::FutureExt as _;
use outbox_core::{
    Capabilities, Error, ErrorKind, OrderClass, Outcome, Publisher, Result, Scope, StoredEvent,
};
use rand::RngExt as _;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    scenario::{PUBLISH_TIMEOUT, RoutePlan},
    world::World,
};
use crate::{
    faulty::{FaultyPublisher, PublishFault},
    invariants::{Answer, Fact},
};

/// The publisher of a route, as a process has it.
pub(super) fn publisher_of(world: &Arc<World>, process: u32, route: usize) -> Arc<dyn Publisher> {
    let connection = Connection {
        world: Arc::clone(world),
        process,
        route,
    };
    let faulty = FaultyPublisher::new(Arc::new(connection));
    let of = Arc::clone(world);
    faulty.script().rule(move |(), _| {
        let fault = draw(&of)?;
        of.fault(format!("p{process} publish to r{route}: {fault:?}"));
        Some(fault)
    });
    Arc::new(Watched {
        world: Arc::clone(world),
        inner: faulty,
        process,
        route,
    })
}

fn draw(world: &World) -> Option<PublishFault> {
    let mut state = world.state();
    if state.calm || state.random.random_range(0..1000) >= world.scenario.publish_faults {
        return None;
    }
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::ConnectionLost,
        ErrorKind::Timeout,
    ];
    let kind = kinds[state.random.random_range(0..3)];
    let delay = Duration::from_millis(state.random.random_range(1..4500));
    let roll = state.random.random_range(0..9);
    if roll == 6 {
        // What is sent again after it, one by one, is of interest when it fails.
        state.shaken = 8;
    }
    Some(match roll {
        0 => PublishFault::Fail(kind),
        1 => PublishFault::LandThenFail(kind),
        2 | 3 => PublishFault::LandSome(state.random.random_range(0..4), kind),
        4 => PublishFault::Slow(delay),
        5 => PublishFault::SlowAnswer(delay),
        6 => PublishFault::Panic,
        7 => PublishFault::WrongCount,
        _ => PublishFault::Hang,
    })
}

/// Writes down the calls.
struct Watched {
    world: Arc<World>,
    inner: FaultyPublisher,
    process: u32,
    route: usize,
}

/// A call that has no answer yet.
struct Call<'a> {
    of: &'a Watched,
    call: u64,
    began: Instant,
    answered: bool,
    /// The caller has the answer.
    returned: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Watched {
            world,
            process,
            route,
            ..
        } = self.of;
        // The engine's own deadline ends a call too.
        let in_time = self.began.elapsed() < PUBLISH_TIMEOUT;
        let (process, call) = (*process, self.call);
        if self.returned || world.is_dead(process) {
            return;
        }
        if !in_time {
            world.fact(*route, Fact::Overdue { call });
        } else if !self.answered && !world.may_have_given_up(process) {
            world.fact(*route, Fact::Cancelled { process, call });
        }
    }
}

impl Watched {
    fn plan(&self) -> &RoutePlan {
        &self.world.scenario.routes[self.route]
    }

    fn answer(&self, call: u64, answers: impl Iterator<Item = (Uuid, Answer)>) {
        self.answer_with(call, answers, Vec::new());
    }

    fn answer_with(
        &self,
        call: u64,
        answers: impl Iterator<Item = (Uuid, Answer)>,
        wishes: Vec<(Uuid, Duration)>,
    ) {
        let answered = Fact::Answered {
            call,
            answers: answers.collect(),
            wishes,
        };
        self.world.fact(self.route, answered);
    }
}

fn answer_of(outcome: &Outcome) -> Answer {
    match outcome {
        Outcome::Delivered(_) => Answer::Delivered,
        Outcome::Rejected(error) => Answer::Rejected(error.failure_scope()),
        Outcome::Failed(error) => Answer::Failed(error.failure_scope()),
        Outcome::Unknown(error) => Answer::Unknown(error.failure_scope()),
    }
}

#[async_trait]
impl Publisher for Watched {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: self.plan().order,
            ..Capabilities::default()
        }
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        if self.world.state().healed || !self.world.scenario.invalid.contains(&event.id) {
            return Ok(());
        }
        self.world.fact(self.route, Fact::Refused(event.id));
        self.world.skipped(self.route, event.id);
        Err(Error::new(ErrorKind::TooLarge, "publish", "simulated"))
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let (world, process) = (&self.world, self.process);
        let call = world.call();
        let waves = self.plan().strict || self.plan().order == OrderClass::None;
        let called = Fact::Called {
            process,
            call,
            at: world.store.clock(),
            waves,
            events: events
                .iter()
                .map(|event| (event.id, event.key.clone()))
                .collect(),
        };
        world.fact(self.route, called);
        for event in events {
            if !world.state().healed && world.scenario.invalid.contains(&event.id) {
                let what = format!("{} was refused, or was not asked about", event.id);
                world.fact(self.route, Fact::Misused { process, what });
            }
        }
        let mut guard = Call {
            of: self,
            call,
            began: Instant::now(),
            answered: false,
            returned: false,
        };
        world.point(process, "publish").await;
        let work = AssertUnwindSafe(self.inner.publish(events)).catch_unwind();
        let outcomes = work.await;
        guard.answered = true;
        let ids = events.iter().map(|event| event.id);
        match outcomes {
            Ok(outcomes) if outcomes.len() == events.len() => {
                let wishes = ids.clone().zip(&outcomes).filter_map(|(id, outcome)| {
                    let wish = outcome.error().and_then(Error::retry_delay)?;
                    Some((id, wish))
                });
                let wishes = wishes.collect();
                self.answer_with(call, ids.zip(outcomes.iter().map(answer_of)), wishes);
                world.point(process, "publish: answer").await;
                guard.returned = true;
                outcomes
            }
            Ok(outcomes) => {
                guard.returned = true;
                self.answer(
                    call,
                    ids.map(|id| (id, Answer::Unknown(Scope::Destination))),
                );
                outcomes
            }
            Err(panic) => {
                guard.returned = true;
                self.answer(call, ids.map(|id| (id, Answer::Unknown(Scope::Message))));
                std::panic::resume_unwind(panic)
            }
        }
    }

    async fn check(&self) -> Result<()> {
        self.world
            .point(self.process, "check of the publisher")
            .await;
        let checked = self.inner.check().await;
        let (process, ok) = (self.process, checked.is_ok());
        self.world.fact(self.route, Fact::Checked { process, ok });
        checked
    }

    async fn close(&self, grace: Duration) {
        self.inner.close(grace).await;
    }
}

/// A connection to a route's broker.
struct Connection {
    world: Arc<World>,
    process: u32,
    route: usize,
}

/// What the broker says to one event.
struct Said {
    outcome: Outcome,
    lands: bool,
}

/// Whether what is down until then is down now.
fn is_down(until: Option<Instant>) -> bool {
    until.is_some_and(|until| until > Instant::now())
}

impl Connection {
    /// What the broker says to one that only asks whether it is there.
    fn say_hello(&self) -> Result<()> {
        let world = &self.world;
        let mut state = world.state();
        let by_chance =
            !state.calm && state.random.random_range(0..1000) < world.scenario.publish_faults;
        if !by_chance && !is_down(state.destinations_down[self.route]) {
            return Ok(());
        }
        let kinds = [
            ErrorKind::Unavailable,
            ErrorKind::ConnectionLost,
            // A relay ends by itself when all of its destinations refuse it.
            ErrorKind::Unauthenticated,
        ];
        let kinds = &kinds[..2 + self.route.min(1)];
        let kind = kinds[state.random.random_range(0..kinds.len())];
        Err(Error::new(kind, "check", "simulated"))
    }

    fn say(&self, event: &StoredEvent) -> Said {
        let world = &self.world;
        let mut state = world.state();
        // The server may say when to come again, and may say more than anyone would wait.
        let wish = (state.random.random_range(0..5) == 0)
            .then(|| Duration::from_millis(state.random.random_range(1..3000)));
        let error = |kind| match wish {
            Some(wish) => error(kind).retry_after(wish),
            None => error(kind),
        };
        let refused = |outcome| Said {
            outcome,
            lands: false,
        };
        if is_down(state.destinations_down[self.route]) {
            let roll = state.random.random_range(0..8);
            return match roll {
                0 => refused(Outcome::Rejected(error(ErrorKind::Unauthenticated))),
                1 => refused(Outcome::Unknown(error(ErrorKind::ConnectionLost))),
                2 => Said {
                    outcome: Outcome::Unknown(error(ErrorKind::ConnectionLost)),
                    lands: true,
                },
                _ => refused(Outcome::Failed(error(ErrorKind::Unavailable))),
            };
        }
        if is_down(state.topics_down.get(&event.topic).copied()) {
            let roll = state.random.random_range(0..6);
            return refused(match roll {
                0 => Outcome::Rejected(error(ErrorKind::Unauthorized)),
                1 => Outcome::Unknown(error(ErrorKind::Unroutable)),
                _ => Outcome::Failed(error(ErrorKind::TopicNotFound)),
            });
        }
        if !state.healed && world.scenario.bad.contains(&event.id) {
            return refused(Outcome::Rejected(error(ErrorKind::Refused)));
        }
        let flaky = match state.shaken {
            0 => world.scenario.flaky,
            _ => world.scenario.flaky.max(300),
        };
        state.shaken = state.shaken.saturating_sub(1);
        if !state.calm && state.random.random_range(0..1000) < flaky {
            let roll = state.random.random_range(0..6);
            return match roll {
                0 => refused(Outcome::Unknown(error(ErrorKind::Refused))),
                1 => Said {
                    outcome: Outcome::Unknown(error(ErrorKind::Refused)),
                    lands: true,
                },
                _ => refused(Outcome::Failed(error(ErrorKind::Refused))),
            };
        }
        Said {
            outcome: Outcome::delivered(),
            lands: true,
        }
    }

    fn kills(&self, event: &StoredEvent) -> bool {
        !self.world.state().healed && self.world.scenario.killers.contains(&event.id)
    }
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "publish", "simulated")
}

#[async_trait]
impl Publisher for Connection {
    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let in_flight = self.world.scenario.routes[self.route].order == OrderClass::InFlight;
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(events.len());
        // Events that the broker refused in this call, by key.
        let mut refused: BTreeMap<&str, Vec<Uuid>> = BTreeMap::new();
        let mut ended = false;
        for event in events {
            if self.kills(event) {
                self.world.kill(self.process, "publish: killer");
            }
            self.world.point(self.process, "publish: midway").await;
            if ended {
                outcomes.push(Outcome::Failed(error(ErrorKind::Unavailable)));
                continue;
            }
            let said = self.say(event);
            if matches!(&said.outcome, Outcome::Rejected(error) if error.failure_scope() == Scope::Message)
            {
                self.world.skipped(self.route, event.id);
            }
            let scope = said.outcome.error().map(Error::failure_scope);
            if said.lands {
                self.world.landed(self.route, event);
                let key = event.key.as_deref().and_then(|key| refused.get(key));
                let pairs = key
                    .into_iter()
                    .flatten()
                    .map(|earlier| (event.id, *earlier));
                let mut state = self.world.state();
                state.histories[self.route].excused.extend(pairs);
            } else if let (true, Some(key)) = (in_flight, &event.key) {
                refused.entry(key).or_default().push(event.id);
            }
            // What keeps order sends nothing behind what the whole destination refused.
            ended = in_flight && scope == Some(Scope::Destination);
            outcomes.push(said.outcome);
        }
        outcomes
    }
    async fn check(&self) -> Result<()> {
        self.say_hello()
    }
}
