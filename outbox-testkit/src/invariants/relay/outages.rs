//! What a process may know of a topic or of the whole destination: whether it has a reason not to send.

use std::collections::BTreeSet;

use outbox_core::{BatchToken, Scope};
use uuid::Uuid;

use super::{
    super::facts::{Answer, Moment},
    Judge,
};

/// Failures of one topic, or of the destination, as one process met them.
#[derive(Default)]
pub(super) struct Outage {
    failing: bool,
    /// Batches that met it since it was well.
    met: BTreeSet<BatchToken>,
    /// Of them, those whose end was not seen: when the process drew its conclusion, if it did, is
    /// not known.
    open: BTreeSet<BatchToken>,
    /// The last fact at which it may still have concluded that it fails.
    concluded: usize,
    /// The fact at which a batch that was claimed after that was settled and had been answered well.
    recovered: Option<usize>,
    /// When it was last met.
    met_at: Moment,
    /// Something was answered well since: the process may know it as well again.
    answered: bool,
    /// Batches with such an answer whose end was not seen: it may count any time.
    answers: BTreeSet<BatchToken>,
}

impl Outage {
    fn failed(&mut self, token: Option<BatchToken>, fact: usize, moment: Moment) {
        (self.failing, self.answered, self.met_at) = (true, false, moment);
        self.recovered = None;
        self.concluded = fact;
        // Without one nobody tells when it was concluded: it fails for ever then.
        let token = token.unwrap_or(BatchToken(Uuid::nil()));
        self.met.insert(token);
        self.open.insert(token);
    }

    /// Whether it may have held back what was claimed at this fact.
    fn holds_back(&self, claimed: usize) -> bool {
        self.failing || self.recovered.is_some_and(|at| at > claimed)
    }
}

impl<'a> Judge<'a> {
    fn outage(&mut self, process: u32, topic: Option<&'a str>) -> &mut Outage {
        self.outages.entry((process, topic)).or_default()
    }

    /// Whether a failing topic, or with none the destination, is a reason not to send what was claimed
    /// at this fact.
    pub(super) fn held_back(&self, process: u32, topic: Option<&str>, claimed: usize) -> bool {
        let outage = self.outages.get(&(process, topic));
        outage.is_some_and(|outage| outage.holds_back(claimed))
    }

    /// Whether this batch alone met the failure: then its pause is a new one.
    pub(super) fn is_fresh(&self, process: u32, topic: &str, token: BatchToken) -> bool {
        let outage = self.outages.get(&(process, Some(topic)));
        outage.is_some_and(|outage| outage.met.iter().eq([&token]))
    }

    pub(super) fn checked(&mut self, moment: Moment, process: u32, ok: bool) {
        let fact = self.fact;
        let outage = self.outage(process, None);
        if ok {
            outage.answered = true;
            return;
        }
        outage.failed(None, fact, moment);
        // It is concluded at once.
        outage.open.remove(&BatchToken(Uuid::nil()));
    }

    /// A destination that fails is left alone, and then gets one event to show that it is well.
    pub(super) fn probes(
        &mut self,
        moment: Moment,
        process: u32,
        events: &[(Uuid, Option<String>)],
    ) {
        let Some(outage) = self.outages.get(&(process, None)) else {
            return;
        };
        let begins = |(id, _): &(Uuid, Option<String>)| {
            let holder = self.events.get(id).and_then(|of| of.holder);
            let claim = holder.and_then(|token| self.claims.get(&token));
            claim.is_some_and(|claim| claim.process == process && !claim.sent)
        };
        // What was being sent when another lane met the failure goes on.
        let knows = outage.failing
            && outage.open.is_empty()
            && !outage.answered
            && outage.answers.is_empty();
        if !knows || !events.iter().all(begins) {
            return;
        }
        let fresh = outage.met.len() == 1 && !outage.met.contains(&BatchToken(Uuid::nil()));
        let early = fresh && moment < outage.met_at + self.history.rules.pause_base;
        if events.len() > 1 {
            let what = format!("{} events were sent to what fails", events.len());
            self.broken("I7", what);
        }
        if early {
            self.broken("I8", "what fails was not left alone".to_owned());
        }
    }

    pub(super) fn answered(&mut self, moment: Moment, number: u64, answers: &[(Uuid, Answer)]) {
        let Some(call) = self.calls.remove(&number) else {
            return;
        };
        for (id, answer) in answers {
            let token = call.events.get(id).copied().flatten();
            let topic = self.topics.get(id).copied();
            let fact = self.fact;
            match answer.scope() {
                Some(Scope::Destination) => {
                    self.outage(call.process, None).failed(token, fact, moment);
                }
                Some(Scope::Topic) => {
                    self.outage(call.process, topic).failed(token, fact, moment);
                    self.topics_failed.extend(topic);
                }
                _ => {}
            }
            if answer.scope() != Some(Scope::Destination) {
                let outage = self.outage(call.process, None);
                outage.answered = true;
                outage.answers.extend(token);
            }
            let holder = self.of(*id).holder.and_then(|of| self.claims.get(&of));
            // An answer may come when another one has the event.
            let late = holder.map(|claim| claim.process) != Some(call.process);
            let of = self.of(*id);
            of.failed |= *answer != Answer::Delivered;
            if !late {
                of.answer = Some(*answer);
            }
        }
        // An answer that comes too late for its caller is followed by another one.
        self.calls.insert(number, call);
    }

    /// A batch was settled: what it met is concluded, and what answered it well, and had no failure
    /// since it was claimed, is well.
    pub(super) fn conclude(
        &mut self,
        process: u32,
        token: BatchToken,
        claimed: usize,
        ids: &[Uuid],
    ) {
        let (mut met, mut well) = (BTreeSet::new(), BTreeSet::new());
        for id in ids {
            let topic = self.topics.get(id).copied();
            let Some(answer) = self.of(*id).answer else {
                continue;
            };
            match answer.scope() {
                Some(Scope::Destination) => drop(met.insert(None)),
                Some(Scope::Topic) => {
                    met.insert(topic);
                    well.insert(None);
                }
                Some(Scope::Message) => drop(well.insert(None)),
                None => {
                    well.insert(topic);
                    well.insert(None);
                }
            }
        }
        let fact = self.fact;
        for (of, outage) in &mut self.outages {
            if of.0 != process {
                continue;
            }
            if outage.open.remove(&token) {
                outage.concluded = fact;
            }
            outage.answered |= outage.answers.remove(&token);
        }
        for topic in well.difference(&met) {
            let Some(outage) = self.outages.get_mut(&(process, *topic)) else {
                continue;
            };
            if outage.failing && outage.open.is_empty() && outage.concluded < claimed {
                outage.failing = false;
                outage.met.clear();
                outage.recovered = Some(fact);
            }
        }
    }
}
