//! Whether a verdict has a cause: an answer, a failing topic or destination, a parked event before it,
//! a lease that may be lost.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use outbox_core::{BatchToken, DeadReason, Scope};
use uuid::Uuid;

use super::{
    super::facts::{Answer, ClaimedEvent, Moment},
    Blocked, Judge,
};

/// A settle, as far as it is looked at.
pub(super) struct Settling {
    pub(super) process: u32,
    pub(super) lane: Arc<str>,
    pub(super) token: BatchToken,
    pub(super) moment: Moment,
    /// The store's clock.
    pub(super) at: Duration,
    /// The fact of its claim.
    pub(super) claimed: usize,
    /// It was claimed before the lane's cursor went back, or right after it.
    pub(super) void: bool,
    pub(super) stream: bool,
    /// Keys of which something before in the batch is parked.
    pub(super) parks: BTreeSet<String>,
    /// Keys of which something before in the batch failed and became a dead letter that is passed:
    /// what follows was not sent, since that the failure would be the last was not known yet.
    pub(super) skipped: BTreeSet<String>,
    /// Something before it in the batch was returned.
    pub(super) returned: bool,
    /// Topics that something before in the batch met failing.
    pub(super) topics_met: BTreeSet<String>,
}

impl Judge<'_> {
    pub(super) fn may_hold(&mut self, settling: &Settling, id: Uuid) -> bool {
        let Some(key) = self.of(id).key.clone() else {
            return false;
        };
        let lane = self.lanes.get(&settling.lane);
        let blocked = lane.and_then(|lane| lane.blocked.get(&key));
        settling.parks.contains(&key)
            || blocked.is_some_and(|blocked| match blocked {
                Blocked::Yes | Blocked::Telling => true,
                Blocked::Told(at) => *at > settling.claimed,
            })
    }

    pub(super) fn may_defer(&self, settling: &Settling, id: Uuid) -> bool {
        let topic = self.topics.get(&id).copied();
        topic.is_some() && self.held_back(settling.process, topic, settling.claimed)
    }

    /// The longest and the shortest time that a topic's event may be put off for.
    pub(super) fn pause_bounds(&mut self, settling: &Settling, id: Uuid) -> (Duration, Duration) {
        let rules = &self.history.rules;
        let (base, cap) = (rules.pause_base, rules.pause_cap);
        let topic = self.topics.get(&id).copied().unwrap_or_default();
        let first = !settling.topics_met.contains(topic)
            && self.of(id).answer.and_then(Answer::scope) == Some(Scope::Topic)
            && self.is_fresh(settling.process, topic, settling.token);
        let wish = self.of(id).wish.min(cap);
        // What is left of a pause may be as short as can be.
        let least = if first {
            base.max(wish)
        } else {
            Duration::from_nanos(1)
        };
        (least, cap)
    }

    pub(super) fn may_return(&self, settling: &Settling, id: Uuid) -> bool {
        let lane = self.lanes.get(&settling.lane);
        let topic = self.topics.get(&id).copied();
        let hampered = self.hampered.get(&settling.process);
        let lately = |at: &Moment| settling.moment < *at + 3 * self.history.rules.lease;
        settling.void
            || settling.returned && settling.stream
            || self.held_back(settling.process, None, settling.claimed)
            || topic.is_some() && self.held_back(settling.process, topic, settling.claimed)
            || lane.is_some_and(|lane| lane.lost)
            || self.key_was_skipped(settling, id)
            || hampered.is_some_and(lately)
            || self.history.rules.clock_steps
    }

    fn key_was_skipped(&self, settling: &Settling, id: Uuid) -> bool {
        let of = self.events.get(&id);
        let key = of.and_then(|of| of.key.as_ref());
        key.is_some_and(|key| settling.skipped.contains(key))
    }

    pub(super) fn may_die(
        &mut self,
        settling: &Settling,
        id: Uuid,
        event: Option<&ClaimedEvent>,
        reason: DeadReason,
    ) -> bool {
        let rules = &self.history.rules;
        let (attempts_max, crashes_max) = (rules.attempts_max, rules.crashes_max);
        let (patience, killer) = (rules.topic_patience, rules.killers.contains(&id));
        let of = self.of(id);
        let (answer, refused) = (of.answer, of.refused);
        let Some(event) = event else {
            return reason == DeadReason::Unreadable;
        };
        let own = matches!(
            answer,
            Some(Answer::Failed(Scope::Message) | Answer::Unknown(Scope::Message))
        );
        match reason {
            DeadReason::Rejected => refused || answer == Some(Answer::Rejected(Scope::Message)),
            DeadReason::AttemptsExhausted => {
                event.attempts > attempts_max || event.attempts == attempts_max && own
            }
            DeadReason::Crashed => event.crashes >= crashes_max && killer,
            DeadReason::TopicUnavailable => {
                event.failing_for.is_some_and(|time| time >= patience)
                    && self.may_defer(settling, id)
            }
            DeadReason::Unreadable | DeadReason::Unrouted => false,
        }
    }
}
