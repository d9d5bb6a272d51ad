//! I6 and I9: who may have a lane and its events, and how often they were tried.

use std::{sync::Arc, time::Duration};

use outbox_core::BatchToken;
use uuid::Uuid;

use super::{
    super::facts::{ClaimedEvent, Fact, Moment},
    Blocked, Claim, End, Judge,
};

impl Judge<'_> {
    /// The batch is nobody's any more. `counts`: its attempts stay counted, and its death is one of
    /// its events'.
    pub(super) fn close(&mut self, token: BatchToken, counts: bool) {
        let Some(claim) = self.claims.get_mut(&token) else {
            return;
        };
        if !std::mem::replace(&mut claim.open, false) {
            return;
        }
        self.open.remove(&token);
        // Whatever ended it then, the store may have found before that its lease was over.
        let counts = counts || claim.expired;
        let ids: Vec<Uuid> = claim.events.iter().map(|event| event.id).collect();
        // Who had it may have meant to park something, and takes its key for blocked.
        let keys = ids.iter().filter_map(|id| self.events.get(id)?.key.clone());
        if let Some(lane) = self.lanes.get_mut(&claim.lane) {
            lane.stream.retain(|of| *of != token);
            lane.blocked.extend(keys.map(|key| (key, Blocked::Yes)));
        }
        for id in ids {
            let of = self.of(id);
            if of.holder == Some(token) {
                of.holder = None;
                if counts {
                    of.losses += 1;
                } else {
                    of.counted = of.counted.saturating_sub(1);
                }
            }
        }
    }

    /// What the store may find ended from now on. Who lives and is not held up renews in time.
    pub(super) fn expire(&mut self, moment: Moment, at: Duration) {
        let mut ended = Vec::new();
        for token in &self.open {
            if let Some(claim) = self.claims.get_mut(token)
                && claim.lease_end <= at
                && !std::mem::replace(&mut claim.expired, true)
            {
                ended.push((claim.process, Arc::clone(&claim.lane)));
            }
        }
        let (lease, clock_steps) = (self.history.rules.lease, self.history.rules.clock_steps);
        for (process, name) in ended {
            if let Some(lane) = self.lanes.get_mut(&name) {
                lane.lost = true;
            }
            let hampered = self.hampered.get(&process);
            let held_up = clock_steps
                || self.dead.contains(&process)
                || self.stopping.contains_key(&process)
                || hampered.is_some_and(|since| moment < *since + 3 * lease);
            if !held_up {
                let what = format!("p{process} let its lease of {name} end");
                self.broken("I6", what);
            }
        }
    }

    pub(super) fn open_claims(&self, lane: &str) -> Vec<BatchToken> {
        let of_lane = |token: &&BatchToken| {
            let claim = self.claims.get(token);
            claim.is_some_and(|claim| &*claim.lane == lane)
        };
        self.open.iter().filter(of_lane).copied().collect()
    }

    pub(super) fn acquired(&mut self, process: u32, name: &Arc<str>, at: Duration) {
        let lease = self.history.rules.lease;
        let lane = self.lanes.entry(Arc::clone(name)).or_default();
        let again = lane.owner == Some(process);
        let early = !again && lane.owner.is_some() && at < lane.lease_end;
        lane.owner = Some(process);
        lane.surrendered = None;
        (lane.next_void, lane.lost) = (false, false);
        lane.lease_end = at + lease;
        if early {
            self.broken("I6", format!("lane {name} was given away within its lease"));
        }
        for token in self.open_claims(name) {
            self.close(token, !again);
        }
    }

    pub(super) fn claimed(&mut self, fact: &Fact) {
        let Fact::Claimed {
            process,
            lane: name,
            token,
            stream,
            at,
            limit,
            events,
            unreadable,
        } = fact
        else {
            return;
        };
        let rules = &self.history.rules;
        let (lease, crashes_max) = (rules.lease, rules.crashes_max);
        if events.len() > limit.events || limit.events > rules.batch_events_max {
            self.broken("I8", format!("a batch of {} events", events.len()));
        }
        let bytes: usize = events.iter().map(|event| event.bytes).sum();
        if bytes > self.history.rules.batch_bytes_max && events.len() > 1 {
            self.broken("I8", format!("a batch of {bytes} bytes"));
        }
        let lane = self.lanes.entry(Arc::clone(name)).or_default();
        lane.lease_end = *at + lease;
        let void_for_relay = std::mem::take(&mut lane.next_void);
        if lane.owner != Some(*process) {
            self.broken("I6", format!("a claim of lane {name} by no owner"));
        }
        for event in events {
            if let Some(holder) = self.of(event.id).holder {
                self.taken_again(event.id, holder, *at);
            }
        }
        for (id, key) in unreadable {
            let of = self.of(*id);
            of.holder = Some(*token);
            of.key.clone_from(key);
        }
        for event in events {
            self.may_be_claimed(event, *at);
            let of = self.of(event.id);
            let (counted, retries, losses) = (of.counted, of.retries, of.losses);
            of.counted += 1;
            of.holder = Some(*token);
            (of.answer, of.wish, of.refused) = (None, Duration::ZERO, false);
            if event.crashes > losses {
                let what = format!("{} has {} crashes after {losses}", event.id, event.crashes);
                self.broken("I9", what);
            }
            if event.attempts > counted + 1 || event.attempts <= retries {
                let what = format!(
                    "{} is at attempt {} after {retries} failures and {counted} claims",
                    event.id, event.attempts
                );
                self.broken("I9", what);
            }
            if event.crashes > crashes_max {
                self.broken(
                    "I8",
                    format!("{} crashed {} times", event.id, event.crashes),
                );
            }
        }
        let claim = Claim {
            process: *process,
            lane: Arc::clone(name),
            fact: self.fact,
            stream: *stream,
            lease_end: *at + lease,
            events: events.clone(),
            unreadable_keys: unreadable
                .iter()
                .filter_map(|(_, key)| key.clone())
                .collect(),
            open: true,
            expired: false,
            void: false,
            void_for_relay,
            sent: false,
        };
        self.claims.insert(*token, claim);
        self.open.insert(*token);
        if *stream && let Some(lane) = self.lanes.get_mut(name) {
            lane.stream.push(*token);
        }
    }

    /// What is over is not handed out, nor what waits, and it is told since when it fails.
    fn may_be_claimed(&mut self, event: &ClaimedEvent, at: Duration) {
        let (id, failing_for) = (event.id, event.failing_for);
        let of = self.of(id);
        let (end, due, first_failed) = (of.end, of.due, of.first_failed);
        match end {
            None => {}
            Some(End::Delivered) => self.broken("I3", format!("{id} was claimed though delivered")),
            Some(End::Dead) => self.broken("I2", format!("{id} was claimed though dead")),
            Some(End::Discarded) => self.broken("I2", format!("{id} was claimed though discarded")),
        }
        if self.history.rules.clock_steps {
            return;
        }
        if due.is_some_and(|due| at < due) {
            self.broken("I8", format!("{id} was claimed before its time"));
        }
        if failing_for != first_failed.map(|first| at.saturating_sub(first)) {
            let what = format!("{id} fails for {failing_for:?}, since {first_failed:?}");
            self.broken("I8", what);
        }
    }

    /// A claim hands out what another one has: right when that one's lease ended, or when it was
    /// read from the stream behind one whose lease ended.
    pub(super) fn taken_again(&mut self, id: Uuid, holder: BatchToken, at: Duration) {
        let Some(claim) = self.claims.get(&holder) else {
            return;
        };
        let (stream, lane) = (claim.stream, Arc::clone(&claim.lane));
        let of_lane = self.lanes.get(&lane).map(|lane| lane.stream.clone());
        let of_lane = of_lane.filter(|_| stream).unwrap_or_default();
        let ended = |claim: &Claim| claim.lease_end <= at;
        let first = of_lane
            .iter()
            .position(|token| self.claims.get(token).is_some_and(ended));
        for token in of_lane.iter().skip(first.unwrap_or(of_lane.len())) {
            if let Some(claim) = self.claims.get_mut(token) {
                claim.void = true;
            }
        }
        let right = self
            .claims
            .get(&holder)
            .is_none_or(|claim| claim.void || ended(claim));
        if !right {
            self.broken("I6", format!("{id} was claimed while it was in flight"));
        }
        self.close(holder, true);
    }

    pub(super) fn renewed(
        &mut self,
        process: u32,
        name: &Arc<str>,
        tokens: &[BatchToken],
        at: Duration,
    ) {
        let end = at + self.history.rules.lease;
        let lane = self.lanes.entry(Arc::clone(name)).or_default();
        lane.lease_end = end;
        if lane.owner != Some(process) {
            self.broken("I6", format!("lane {name} was renewed by no owner"));
        }
        for token in tokens {
            if let Some(claim) = self.claims.get_mut(token) {
                claim.lease_end = end;
            }
        }
    }

    pub(super) fn released(&mut self, process: u32, name: &Arc<str>) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        if lane.owner == Some(process) {
            lane.owner = None;
            for token in self.open_claims(name) {
                self.close(token, false);
            }
        }
    }
}
