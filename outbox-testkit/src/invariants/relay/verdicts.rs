//! I2, I3, I6, I8 and I9: what is written about events, by whom, and why.

use std::{collections::BTreeSet, sync::Arc};

use outbox_core::{BatchToken, DeadReason, Scope, Verdict};
use uuid::Uuid;

use super::{
    super::facts::{Answer, ClaimedEvent, Fact, Moment, Place, Written},
    Blocked, End, Judge,
    causes::Settling,
};

impl Judge<'_> {
    pub(super) fn settled(&mut self, moment: Moment, fact: &Fact) {
        let Fact::Settled {
            process,
            lane: name,
            token,
            verdicts,
            applied,
            at,
            unblocked,
        } = fact
        else {
            return;
        };
        if *applied == 0 {
            return;
        }
        let owner = self.lanes.get(name).and_then(|lane| lane.owner);
        let claim = self.claims.get(token);
        let valid = claim.is_some_and(|claim| claim.open && claim.process == *process);
        if !valid || owner != Some(*process) {
            let what = format!("a settle of lane {name} by one who lost it was written");
            self.broken("I6", what);
        }
        self.open.remove(token);
        let claim = self.claims.get_mut(token);
        let (claimed, mut settling) = claim.map_or_else(Default::default, |claim| {
            claim.open = false;
            let settling = Settling {
                process: *process,
                lane: Arc::clone(name),
                token: *token,
                moment,
                at: *at,
                claimed: claim.fact,
                void: claim.void_for_relay,
                stream: claim.stream,
                parks: claim.unreadable_keys.clone(),
                skipped: BTreeSet::new(),
                returned: false,
                topics_met: BTreeSet::new(),
            };
            (claim.events.clone(), Some(settling))
        });
        let Some(settling) = &mut settling else {
            return;
        };
        // Who returns a part because a later answer failed has that answer already.
        for written in verdicts {
            let id = written.id;
            if self.of(id).holder != Some(*token) {
                self.broken("I6", format!("{id} was settled by one who lost it"));
            }
            let event = claimed.iter().find(|event| event.id == id);
            self.verdict(settling, event, written);
            self.standing(settling, event, written);
            self.remember(settling, written);
        }
        let ids: Vec<Uuid> = verdicts.iter().map(|of| of.id).collect();
        self.conclude(*process, *token, settling.claimed, &ids);
        for id in ids {
            let of = self.of(id);
            of.holder = None;
            of.losses = 0;
        }
        let fact = self.fact;
        if let Some(lane) = self.lanes.get_mut(name) {
            // A lane settles one batch at a time: the last answer has come.
            for blocked in lane.blocked.values_mut() {
                if *blocked == Blocked::Telling {
                    *blocked = Blocked::Told(fact);
                }
            }
            for key in unblocked {
                lane.blocked.insert(key.clone(), Blocked::Telling);
            }
        }
        self.rewind(name, *token, settling.stream && settling.returned);
    }

    /// What is behind a settled batch in the stream is void when something of that was returned.
    fn rewind(&mut self, name: &Arc<str>, token: BatchToken, rewinds: bool) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let place = lane.stream.iter().position(|of| *of == token);
        let behind = lane.stream.iter().skip(place.map_or(0, |at| at + 1));
        let behind: Vec<BatchToken> = behind.copied().collect();
        lane.stream.retain(|of| *of != token);
        if !rewinds {
            return;
        }
        lane.next_void = true;
        for token in self.open_claims(name) {
            if let Some(claim) = self.claims.get_mut(&token) {
                claim.void_for_relay = true;
            }
        }
        for token in behind {
            self.close(token, false);
        }
    }

    /// What later verdicts of the batch, and later claims, may refer to.
    fn remember(&mut self, settling: &mut Settling, written: &Written) {
        let id = written.id;
        let at = settling.at;
        let of = self.of(id);
        of.due = None;
        match &written.verdict {
            Verdict::Done => of.end = Some(End::Delivered),
            Verdict::Dead { .. } => {
                of.end = Some(End::Dead);
                of.first_failed.get_or_insert(at);
            }
            Verdict::Retry { after, .. } | Verdict::Defer { after, .. } => {
                of.due = Some(at.saturating_add(*after));
                of.first_failed.get_or_insert(at);
            }
            Verdict::Return => settling.returned = true,
            Verdict::Hold => {}
        }
        let (key, answer) = (of.key.clone(), of.answer);
        let (parks, returned) = match &written.verdict {
            Verdict::Retry { .. } | Verdict::Defer { .. } | Verdict::Hold => (true, false),
            Verdict::Dead { hold_key, .. } => (*hold_key, false),
            // A relay that had meant to park it may take its key for blocked.
            Verdict::Return => (false, true),
            Verdict::Done => (false, false),
        };
        if answer.and_then(Answer::scope) == Some(Scope::Topic) {
            let topic = self.topics.get(&id).copied().unwrap_or_default();
            settling.topics_met.insert(topic.to_owned());
        }
        if let Some(key) = &key
            && matches!(written.verdict, Verdict::Dead { .. })
            && answer.is_some_and(|answer| answer != Answer::Rejected(Scope::Message))
        {
            settling.skipped.insert(key.clone());
        }
        if let Some(key) = key
            && (parks || returned)
        {
            if let Some(lane) = self.lanes.get_mut(&settling.lane) {
                lane.blocked.insert(key.clone(), Blocked::Yes);
            }
            if parks {
                settling.parks.insert(key);
            }
        }
    }

    /// What the store made of a verdict.
    fn standing(&mut self, settling: &Settling, event: Option<&ClaimedEvent>, written: &Written) {
        let Written {
            id,
            verdict,
            stands,
        } = written;
        let attempts = event.map(|event| event.attempts);
        let given_back = attempts.map(|attempts| attempts.saturating_sub(1));
        let keyed = self.of(*id).key.is_some();
        let at = settling.at;
        let (place, counted) = match verdict {
            Verdict::Done => (stands.place == Place::Delivered, None),
            Verdict::Retry { after, .. } => (stands.place == Place::Waiting(at + *after), attempts),
            Verdict::Defer { after, .. } => {
                (stands.place == Place::Waiting(at + *after), given_back)
            }
            Verdict::Hold => (stands.place == Place::Held, given_back),
            Verdict::Return if settling.stream => (stands.place == Place::Stream, None),
            Verdict::Return => {
                let waits = matches!(stands.place, Place::Waiting(_) | Place::Held);
                (waits, given_back)
            }
            Verdict::Dead {
                reason, hold_key, ..
            } => {
                let place = Place::Dead(*reason, *hold_key && keyed);
                (stands.place == place, attempts)
            }
        };
        if !place || counted.is_some_and(|counted| counted != stands.attempts) {
            let what = format!("{id} was to be {verdict:?} after {attempts:?}, and is {stands:?}");
            self.broken("I2", what);
        }
    }

    fn verdict(&mut self, settling: &Settling, event: Option<&ClaimedEvent>, written: &Written) {
        let id = written.id;
        let rules = &self.history.rules;
        let (attempts_max, skips) = (rules.attempts_max, rules.skips);
        let (base, cap) = (rules.retry_base, rules.retry_cap);
        let attempts = event.map_or(0, |event| event.attempts);
        let of = self.of(id);
        let answer = of.answer;
        if event.is_none() && !matches!(written.verdict, Verdict::Dead { .. } | Verdict::Return) {
            self.broken("I2", format!("{id} is no event, and was not taken for one"));
            return;
        }
        match &written.verdict {
            Verdict::Done => {
                if answer != Some(Answer::Delivered) {
                    let what = format!("{id} was settled as delivered without an acknowledgement");
                    self.broken("I3", what);
                }
            }
            Verdict::Retry { after, .. } => {
                of.retries += 1;
                let least = base.max(of.wish.min(cap));
                let own = matches!(
                    answer,
                    Some(Answer::Failed(Scope::Message) | Answer::Unknown(Scope::Message))
                );
                if !own {
                    self.broken("I9", format!("{id} lost an attempt to an outage"));
                }
                if attempts >= attempts_max {
                    self.broken(
                        "I8",
                        format!("{id} is tried again after {attempts} attempts"),
                    );
                }
                if *after > cap || *after < least {
                    self.broken("I8", format!("{id} waits {after:?}"));
                }
            }
            Verdict::Defer { after, .. } => {
                of.counted = of.counted.saturating_sub(1);
                if self.may_defer(settling, id) {
                    // A paused topic's events are put off unsent.
                    self.of(id).failed = true;
                } else {
                    self.broken("I7", format!("{id} was put off, and its topic is well"));
                }
                let (least, most) = self.pause_bounds(settling, id);
                if *after < least || *after > most {
                    self.broken("I8", format!("{id} is put off for {after:?}"));
                }
            }
            Verdict::Hold => {
                of.counted = of.counted.saturating_sub(1);
                if !self.may_hold(settling, id) {
                    self.broken(
                        "I7",
                        format!("{id} is held, and nothing before it is parked"),
                    );
                }
            }
            Verdict::Return => {
                of.counted = of.counted.saturating_sub(1);
                if !self.may_return(settling, id) {
                    self.broken("I7", format!("{id} was given back for no reason"));
                }
            }
            Verdict::Dead {
                reason, hold_key, ..
            } => {
                if *hold_key == skips {
                    self.broken("I5", format!("{id} is dead, and holds its key: {hold_key}"));
                }
                if !self.may_die(settling, id, event, *reason) {
                    let invariant = if *reason == DeadReason::Crashed {
                        "I9"
                    } else {
                        "I2"
                    };
                    let what = format!("{id} is dead ({reason}) without cause: {event:?}");
                    self.broken(invariant, what);
                }
            }
        }
    }
}
