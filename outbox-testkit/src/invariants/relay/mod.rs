//! I3, I6, I7, I8 and I9: what relays did, call by call.

mod calls;
mod causes;
mod isolation;
mod leases;
mod outages;
mod verdicts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use outbox_core::{BatchToken, Scope};
use uuid::Uuid;

use self::outages::Outage;
use super::{
    facts::{Answer, ClaimedEvent, Fact, Moment},
    history::History,
    violation::Violation,
};

/// What a lane's owner knows of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocked {
    /// Something of it is parked.
    Yes,
    /// An answer says that nothing is, and may still be on its way.
    Telling,
    /// The answer had come by this fact.
    Told(usize),
}

/// A lane as the facts make it.
#[derive(Default)]
struct Lane {
    owner: Option<u32>,
    lease_end: Duration,
    /// When its owner was asked to give it away.
    surrendered: Option<Moment>,
    /// Batches of the stream that are not settled, in the order of their claims.
    stream: Vec<BatchToken>,
    /// Keys of which something was parked, as its owner may know them.
    blocked: BTreeMap<String, Blocked>,
    /// Its owner may take the next claim for void: it had begun it when the cursor went back.
    next_void: bool,
    /// A lease of its owner's may have ended.
    lost: bool,
}

/// A claim.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
struct Claim {
    process: u32,
    lane: Arc<str>,
    /// Which fact it is.
    fact: usize,
    stream: bool,
    lease_end: Duration,
    events: Vec<ClaimedEvent>,
    unreadable_keys: BTreeSet<String>,
    open: bool,
    /// Its lease was over at some time, by a clock that may have been set back since.
    expired: bool,
    /// It stood in the stream behind one whose lease ended.
    void: bool,
    /// Its relay may take it for void: the cursor went back after it was claimed.
    void_for_relay: bool,
    /// Some of it was handed to the publisher.
    sent: bool,
}

/// How an event ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Delivered,
    Dead,
    Discarded,
}

/// An event.
#[derive(Default)]
struct Of {
    holder: Option<BatchToken>,
    /// Attempts that count.
    counted: u32,
    /// Failures of its own that were written.
    retries: u32,
    /// Claims that ended without a word, since the last that was settled.
    losses: u32,
    /// What the publisher said since the last claim.
    answer: Option<Answer>,
    /// How long the server wished to be left alone, said with that.
    wish: Duration,
    refused: bool,
    end: Option<End>,
    /// When it may be claimed again, and when it first failed, by the store's clock.
    due: Option<Duration>,
    first_failed: Option<Duration>,
    key: Option<String>,
    committed_at: Option<Moment>,
    landed: bool,
    failed: bool,
}

/// A call of the publisher that has no answer yet.
struct Call {
    process: u32,
    /// Its events, and the claims of the caller that they are from.
    events: BTreeMap<Uuid, Option<BatchToken>>,
}

struct Judge<'a> {
    history: &'a History,
    violations: &'a mut Vec<Violation>,
    fact: usize,
    /// Claims that are neither settled nor given back, as far as that shows.
    open: BTreeSet<BatchToken>,
    lanes: BTreeMap<Arc<str>, Lane>,
    claims: BTreeMap<BatchToken, Claim>,
    events: BTreeMap<Uuid, Of>,
    calls: BTreeMap<u64, Call>,
    /// By process; of a topic, or of the destination.
    outages: BTreeMap<(u32, Option<&'a str>), Outage>,
    topics_failed: BTreeSet<&'a str>,
    hampered: BTreeMap<u32, Moment>,
    stopping: BTreeMap<u32, Moment>,
    dead: BTreeSet<u32>,
    topics: BTreeMap<Uuid, &'a str>,
}

pub(super) fn judge(history: &History, violations: &mut Vec<Violation>) {
    let mut judge = Judge {
        history,
        violations,
        fact: 0,
        open: BTreeSet::new(),
        lanes: BTreeMap::new(),
        claims: BTreeMap::new(),
        events: BTreeMap::new(),
        calls: BTreeMap::new(),
        outages: BTreeMap::new(),
        topics_failed: BTreeSet::new(),
        hampered: BTreeMap::new(),
        stopping: BTreeMap::new(),
        dead: BTreeSet::new(),
        topics: BTreeMap::new(),
    };
    for event in &history.committed {
        judge.topics.insert(event.id(), event.topic());
        let of = judge.events.entry(event.id()).or_default();
        of.key = event.key().map(ToOwned::to_owned);
    }
    for (index, (moment, fact)) in history.facts.iter().enumerate() {
        judge.fact = index;
        judge.look(*moment, fact);
    }
    judge.isolation();
}

impl Judge<'_> {
    fn broken(&mut self, invariant: &'static str, what: String) {
        self.violations.push(Violation::Broken {
            invariant,
            fact: self.fact,
            what,
        });
    }

    fn of(&mut self, id: Uuid) -> &mut Of {
        self.events.entry(id).or_default()
    }

    fn look(&mut self, moment: Moment, fact: &Fact) {
        if let Fact::Acquired { at, .. }
        | Fact::Kept { at, .. }
        | Fact::Claimed { at, .. }
        | Fact::Renewed { at, .. } = fact
        {
            self.expire(moment, *at);
        }
        match fact {
            Fact::Committed(ids) => {
                for id in ids {
                    self.of(*id).committed_at = Some(moment);
                }
            }
            Fact::Landed(id) => {
                if self.of(*id).committed_at.is_none() {
                    self.broken("I1", format!("{id} was published before it was committed"));
                }
                self.of(*id).landed = true;
            }
            Fact::Acquired { process, lane, at } => self.acquired(*process, lane, *at),
            Fact::Kept { process, lane, at } => {
                let end = *at + self.history.rules.lease;
                let lane = self.lanes.entry(Arc::clone(lane)).or_default();
                if lane.owner == Some(*process) {
                    lane.lease_end = end;
                }
            }
            Fact::Claimed { .. } => self.claimed(fact),
            Fact::Renewed {
                process,
                lane,
                tokens,
                at,
            } => self.renewed(*process, lane, tokens, *at),
            Fact::Called {
                process,
                call,
                at,
                waves,
                events,
            } => {
                self.probes(moment, *process, events);
                self.in_time(*process, *at, events);
                self.called((*call, *process), *waves, events);
            }
            Fact::Answered {
                call,
                answers,
                wishes,
            } => {
                self.answered(moment, *call, answers);
                for (id, wish) in wishes {
                    self.of(*id).wish = *wish;
                }
            }
            Fact::Overdue { call } => {
                let call = (*call, self.calls.get(call));
                let ids = call.1.into_iter().flat_map(|of| of.events.keys());
                let unknown = Answer::Unknown(Scope::Destination);
                let answers: Vec<_> = ids.map(|id| (*id, unknown)).collect();
                self.answered(moment, call.0, &answers);
            }
            Fact::Checked { process, ok } => self.checked(moment, *process, *ok),
            Fact::Hampered { process } => {
                self.hampered.insert(*process, moment);
            }
            Fact::Misused { process, what } => {
                self.broken("I2", format!("p{process} broke a contract: {what}"));
            }
            Fact::Blocked { lane, keys } => {
                let lane = self.lanes.entry(Arc::clone(lane)).or_default();
                lane.blocked = keys.iter().map(|key| (key.clone(), Blocked::Yes)).collect();
            }
            Fact::Cancelled { process, call } => self.cancelled(moment, *process, *call),
            Fact::Refused(id) => {
                self.of(*id).refused = true;
                self.of(*id).failed = true;
            }
            Fact::Settled { .. } => self.settled(moment, fact),
            Fact::Surrendered { lane, .. } => {
                let lane = self.lanes.entry(Arc::clone(lane)).or_default();
                lane.surrendered.get_or_insert(moment);
            }
            Fact::Released { process, lane } => self.released(*process, lane),
            Fact::Requeued(id) => {
                let of = self.of(*id);
                (of.counted, of.retries, of.losses) = (0, 0, 0);
                (of.end, of.due, of.first_failed) = (None, None, None);
            }
            Fact::Discarded(id) => self.of(*id).end = Some(End::Discarded),
            Fact::Died { process, .. } => {
                self.dead.insert(*process);
            }
            Fact::Stopping { process } => {
                self.stopping.insert(*process, moment);
            }
            Fact::Fault(_) => {}
        }
    }
}
