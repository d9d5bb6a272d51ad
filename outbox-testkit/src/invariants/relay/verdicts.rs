//! I2, I3, I6, I8 and I9: what is written about events, and by whom.

use outbox_core::{BatchToken, DeadReason, Scope, Verdict};
use uuid::Uuid;

use super::{
    super::facts::{Answer, ClaimedEvent, Fact},
    Judge,
};

impl Judge<'_> {
    pub(super) fn settled(&mut self, fact: &Fact) {
        let Fact::Settled {
            process,
            lane: name,
            token,
            verdicts,
            applied,
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
        let (claimed, stream) = claim.map_or((Vec::new(), false), |claim| {
            claim.open = false;
            (claim.events.clone(), claim.stream)
        });
        for (id, verdict) in verdicts {
            if self.of(*id).holder != Some(*token) {
                self.broken("I6", format!("{id} was settled by one who lost it"));
            }
            let event = claimed.iter().find(|event| event.id == *id);
            self.verdict(*id, event, verdict);
            let of = self.of(*id);
            of.holder = None;
            of.losses = 0;
        }
        let rewinds = stream
            && verdicts
                .iter()
                .any(|(_, verdict)| *verdict == Verdict::Return);
        let behind: Vec<BatchToken> = match self.lanes.get_mut(name) {
            Some(lane) => {
                let place = lane.stream.iter().position(|of| of == token);
                let behind = lane.stream.iter().skip(place.map_or(0, |at| at + 1));
                let behind = behind.copied().collect();
                lane.stream.retain(|of| of != token);
                behind
            }
            None => Vec::new(),
        };
        if rewinds {
            for token in behind {
                self.close(token, false);
            }
        }
    }

    pub(super) fn verdict(&mut self, id: Uuid, event: Option<&ClaimedEvent>, verdict: &Verdict) {
        let rules = &self.history.rules;
        let (attempts_max, crashes_max) = (rules.attempts_max, rules.crashes_max);
        let (base, cap, killer) = (
            rules.retry_base,
            rules.retry_cap,
            rules.killers.contains(&id),
        );
        let (attempts, crashes) = event.map_or((0, 0), |event| (event.attempts, event.crashes));
        let of = self.of(id);
        let (answer, refused) = (of.answer, of.refused);
        match verdict {
            Verdict::Done => {
                if answer != Some(Answer::Delivered) {
                    let what = format!("{id} was settled as delivered without an acknowledgement");
                    self.broken("I3", what);
                }
            }
            Verdict::Retry { after, .. } => {
                of.retries += 1;
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
                if *after > cap || *after < base {
                    self.broken("I8", format!("{id} waits {after:?}"));
                }
            }
            Verdict::Defer { .. } | Verdict::Hold | Verdict::Return => {
                of.counted = of.counted.saturating_sub(1);
                // A paused topic's events are put off unsent.
                of.failed |= matches!(verdict, Verdict::Defer { .. });
            }
            Verdict::Dead { reason, .. } => {
                let right = match reason {
                    DeadReason::Rejected => {
                        refused || matches!(answer, Some(Answer::Rejected(Scope::Message)))
                    }
                    DeadReason::AttemptsExhausted => attempts >= attempts_max,
                    DeadReason::Crashed => crashes >= crashes_max && killer,
                    _ => true,
                };
                if !right {
                    let invariant = if *reason == DeadReason::Crashed {
                        "I9"
                    } else {
                        "I2"
                    };
                    let what = format!(
                        "{id} is dead ({reason}) without cause: attempt {attempts}, {crashes} crashes"
                    );
                    self.broken(invariant, what);
                }
            }
        }
    }
}
