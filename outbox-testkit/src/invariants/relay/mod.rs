//! I3, I6, I7, I8 and I9: what relays did, call by call.

mod calls;
mod isolation;
mod leases;
mod verdicts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use outbox_core::BatchToken;
use uuid::Uuid;

use super::{
    facts::{Answer, ClaimedEvent, Fact, Moment},
    history::History,
    violation::Violation,
};

/// A lane as the facts make it.
#[derive(Default)]
struct Lane {
    owner: Option<u32>,
    lease_end: Duration,
    /// When its owner was asked to give it away.
    surrendered: Option<Moment>,
    /// Batches of the stream that are not settled, in the order of their claims.
    stream: Vec<BatchToken>,
}

/// A claim.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
struct Claim {
    process: u32,
    lane: Arc<str>,
    stream: bool,
    lease_end: Duration,
    events: Vec<ClaimedEvent>,
    open: bool,
    /// Its lease was over at some time, by a clock that may have been set back since.
    expired: bool,
    /// It stood in the stream behind one whose lease ended.
    void: bool,
    /// Some of it was handed to the publisher.
    sent: bool,
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
    refused: bool,
    key: Option<String>,
    committed_at: Option<Moment>,
    landed: bool,
    failed: bool,
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
    calls: BTreeMap<u64, (u32, Vec<Uuid>)>,
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
            self.expire(*at);
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
                self.in_time(*process, *at, events);
                self.called((*call, *process), *waves, events);
            }
            Fact::Answered { call, answers } => {
                let caller = self.calls.remove(call).map(|(process, _)| process);
                for (id, answer) in answers {
                    let holder = self.of(*id).holder.and_then(|of| self.claims.get(&of));
                    // An answer may come when another one has the event.
                    let late = holder.map(|claim| claim.process) != caller;
                    let of = self.of(*id);
                    of.failed |= *answer != Answer::Delivered;
                    if !late {
                        of.answer = Some(*answer);
                    }
                }
            }
            Fact::Cancelled { process, call } => self.cancelled(moment, *process, *call),
            Fact::Refused(id) => {
                self.of(*id).refused = true;
                self.of(*id).failed = true;
            }
            Fact::Settled { .. } => self.settled(fact),
            Fact::Surrendered { lane, .. } => {
                let lane = self.lanes.entry(Arc::clone(lane)).or_default();
                lane.surrendered.get_or_insert(moment);
            }
            Fact::Released { process, lane } => self.released(*process, lane),
            Fact::Requeued(id) => {
                let of = self.of(*id);
                (of.counted, of.retries, of.losses) = (0, 0, 0);
            }
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
