//! I6 and I9: who may have a lane and its events, and how often they were tried.

use std::{sync::Arc, time::Duration};

use outbox_core::BatchToken;
use uuid::Uuid;

use super::{super::facts::Fact, Claim, Judge};

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
        if let Some(lane) = self.lanes.get_mut(&claim.lane) {
            lane.stream.retain(|of| *of != token);
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

    /// What the store may find ended from now on.
    pub(super) fn expire(&mut self, at: Duration) {
        for token in &self.open {
            if let Some(claim) = self.claims.get_mut(token) {
                claim.expired |= claim.lease_end <= at;
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
        if lane.owner != Some(*process) {
            self.broken("I6", format!("a claim of lane {name} by no owner"));
        }
        for event in events {
            if let Some(holder) = self.of(event.id).holder {
                self.taken_again(event.id, holder, *at);
            }
        }
        for event in events {
            let of = self.of(event.id);
            let (counted, retries, losses) = (of.counted, of.retries, of.losses);
            of.counted += 1;
            of.holder = Some(*token);
            of.answer = None;
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
            stream: *stream,
            lease_end: *at + lease,
            events: events.clone(),
            open: true,
            expired: false,
            void: false,
            sent: false,
        };
        self.claims.insert(*token, claim);
        self.open.insert(*token);
        if *stream && let Some(lane) = self.lanes.get_mut(name) {
            lane.stream.push(*token);
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
