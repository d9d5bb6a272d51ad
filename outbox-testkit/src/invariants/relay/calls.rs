//! I2, I5, I6 and I8: what is handed to publishers, and when.

use std::{collections::BTreeSet, time::Duration};

use uuid::Uuid;

use super::{super::facts::Moment, Call, Judge};

impl Judge<'_> {
    /// A batch is not sent when its lease has ended: it may be another's. The first call tells; those
    /// behind it are covered by renewals.
    pub(super) fn in_time(
        &mut self,
        process: u32,
        at: Duration,
        events: &[(Uuid, Option<String>)],
    ) {
        let mut late = Vec::new();
        for (id, _) in events {
            let holder = self.of(*id).holder;
            let claim = holder.and_then(|token| self.claims.get_mut(&token));
            if let Some(claim) = claim.filter(|claim| claim.process == process)
                && !std::mem::replace(&mut claim.sent, true)
                && claim.lease_end <= at
            {
                late.push(*id);
            }
        }
        if self.history.rules.clock_steps {
            return;
        }
        if let Some(id) = late.first() {
            self.broken("I6", format!("{id} was sent although its lease had ended"));
        }
    }

    pub(super) fn called(
        &mut self,
        (call, process): (u64, u32),
        waves: bool,
        events: &[(Uuid, Option<String>)],
    ) {
        let rules = &self.history.rules;
        let (events_max, attempts_max) = (rules.batch_events_max, rules.attempts_max);
        let crashes_max = rules.crashes_max;
        if events.len() > events_max {
            self.broken("I8", format!("{} events were sent at once", events.len()));
        }
        let mut keys = BTreeSet::new();
        for (id, key) in events {
            if let (true, Some(key)) = (waves, key)
                && !keys.insert(key)
            {
                let what = format!("{id}: two of key {key} in flight without order in flight");
                self.broken("I5", what);
            }
            let holder = self.of(*id).holder;
            let claim = holder.and_then(|token| self.claims.get(&token));
            let event = claim.and_then(|claim| claim.events.iter().find(|event| event.id == *id));
            let Some(event) = event else { continue };
            let (attempts, crashes) = (event.attempts, event.crashes);
            if attempts > attempts_max {
                self.broken("I8", format!("{id} was sent as attempt {attempts}"));
            }
            if crashes >= crashes_max {
                self.broken("I9", format!("{id} was sent after {crashes} crashes"));
            }
        }
        let own = |judge: &Self, id| {
            let token = judge.events.get(id).and_then(|of| of.holder)?;
            let claim = judge.claims.get(&token)?;
            (claim.process == process).then_some(token)
        };
        let events = events.iter().map(|(id, _)| (*id, own(self, id))).collect();
        self.calls.insert(call, Call { process, events });
    }

    /// A stop waits for what is in flight, as long as the lane is the relay's.
    pub(super) fn cancelled(&mut self, moment: Moment, process: u32, call: u64) {
        let Some(Call { events, .. }) = self.calls.remove(&call) else {
            return;
        };
        let Some(since) = self.stopping.get(&process) else {
            return;
        };
        let end = *since + self.history.rules.grace;
        // A lane that was to be given away before that has had its own grace.
        let holds = |id: &Uuid| {
            let holder = self.events.get(id).and_then(|of| of.holder);
            let claim = holder.and_then(|token| self.claims.get(&token));
            claim.is_some_and(|claim| {
                let lane = self.lanes.get(&claim.lane);
                let surrendered = lane.is_some_and(|lane| lane.surrendered.is_some());
                claim.open && claim.process == process && !surrendered
            })
        };
        if moment < end && !self.dead.contains(&process) && events.keys().all(holds) {
            let what = format!("{} events in flight were dropped by a stop", events.len());
            self.broken("I2", what);
        }
    }
}
