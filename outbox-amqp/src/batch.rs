//! How far a call has come with each of its events. No I/O; kept outside of the work, so that it
//! survives the work's end by the deadline.

use std::collections::BTreeMap;

use outbox_core::{Error, ErrorKind, Outcome, StoredEvent};

use crate::{
    error::{Blame, PUBLISH},
    wire,
};

#[derive(Debug)]
enum Stage {
    /// To be sent, for the first time or again.
    Waiting,
    /// Handed to the driver and not answered.
    InFlight,
    /// Confirmed; a return may still say that no queue took it.
    Confirmed,
    Settled(Outcome),
}

/// The events of one call.
pub(crate) struct Batch<'a> {
    events: &'a [StoredEvent],
    stages: Vec<Stage>,
    /// An earlier sending of it may have landed.
    in_doubt: Vec<bool>,
    /// The same, without the last sending.
    doubted_before: Vec<bool>,
    /// Everything before is not waiting.
    next: usize,
    /// Events that no queue took; their confirmation may come before or after.
    returned: BTreeMap<usize, Error>,
    /// What this call need not be asked again: topics and whole exchanges, and what they answered.
    charged_topics: BTreeMap<&'a str, Error>,
    charged_exchanges: BTreeMap<&'a str, Error>,
    /// Up to this event one at a time: a channel was closed by one of those in flight, and which
    /// one the server does not say.
    one_by_one: Option<usize>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(events: &'a [StoredEvent]) -> Self {
        let count = events.len();
        Self {
            events,
            stages: std::iter::repeat_with(|| Stage::Waiting)
                .take(count)
                .collect(),
            in_doubt: vec![false; count],
            doubted_before: vec![false; count],
            next: 0,
            returned: BTreeMap::new(),
            charged_topics: BTreeMap::new(),
            charged_exchanges: BTreeMap::new(),
            one_by_one: None,
        }
    }

    pub(crate) fn event(&self, index: usize) -> &'a StoredEvent {
        &self.events[index]
    }

    /// The first event that is to be sent. Those whose topic was refused in this call are settled
    /// on the way: what follows a refused event in its topic is not sent before it.
    pub(crate) fn waiting(&mut self) -> Option<usize> {
        while self.next < self.stages.len() {
            let index = self.next;
            if matches!(self.stages[index], Stage::Waiting) {
                match self.charge(index) {
                    Some(error) => self.settle(index, Outcome::Failed(error)),
                    None => return Some(index),
                }
            }
            self.next += 1;
        }
        None
    }

    fn charge(&self, index: usize) -> Option<Error> {
        let topic = self.events[index].topic.as_str();
        let (exchange, _) = wire::address(topic);
        let of_topic = self.charged_topics.get(topic);
        of_topic
            .or_else(|| self.charged_exchanges.get(exchange))
            .map(Error::copy)
    }

    /// Whether this event must not be in flight with others.
    pub(crate) fn goes_alone(&mut self, index: usize) -> bool {
        if self.one_by_one.is_some_and(|last| index > last) {
            self.one_by_one = None;
        }
        self.one_by_one.is_some()
    }

    pub(crate) fn sent(&mut self, index: usize) {
        debug_assert!(matches!(self.stages[index], Stage::Waiting), "sent twice");
        self.stages[index] = Stage::InFlight;
    }

    pub(crate) fn confirmed(&mut self, index: usize) {
        self.stages[index] = Stage::Confirmed;
    }

    /// Pairs a returned message with its event: the server's order does not. Gives its topic.
    pub(crate) fn returned(&mut self, message_id: &str, error: Error) -> Option<&'a str> {
        let mut events = self.events.iter().enumerate();
        let (index, event) = events.find(|(index, event)| {
            let open = matches!(self.stages[*index], Stage::InFlight | Stage::Confirmed);
            open && event.id.to_string() == message_id && !self.returned.contains_key(index)
        })?;
        self.charged_topics
            .entry(&event.topic)
            .or_insert_with(|| error.copy());
        self.returned.insert(index, error);
        Some(&event.topic)
    }

    /// The server refused it, and would refuse others.
    pub(crate) fn refuse(&mut self, index: usize, outcome: Outcome, blame: Blame) {
        self.one_by_one = None;
        let topic = self.events[index].topic.as_str();
        if let Some(error) = outcome.error() {
            let (exchange, _) = wire::address(topic);
            let charged = match blame {
                Blame::Exchange => Some((&mut self.charged_exchanges, exchange)),
                Blame::Topic => Some((&mut self.charged_topics, topic)),
                Blame::Message => None,
            };
            if let Some((charged, name)) = charged {
                charged.insert(name, error.copy());
            }
        }
        self.settle(index, outcome);
    }

    /// The channel was closed while only this event was in flight: it is the one that the server
    /// refused, so this sending of it did not land.
    pub(crate) fn blame(&mut self, index: usize, outcome: Outcome, blame: Blame) {
        self.in_doubt[index] = self.doubted_before[index];
        self.refuse(index, outcome, blame);
    }

    /// It goes again, in its order.
    pub(crate) fn again(&mut self, index: usize, in_doubt: bool) {
        self.stages[index] = Stage::Waiting;
        self.doubted_before[index] = self.in_doubt[index];
        self.in_doubt[index] |= in_doubt;
        self.next = self.next.min(index);
    }

    /// One of the events up to this one closed the channel.
    pub(crate) fn find_culprit_up_to(&mut self, index: usize) {
        self.one_by_one = Some(index);
    }

    pub(crate) fn settle(&mut self, index: usize, outcome: Outcome) {
        debug_assert!(
            !matches!(self.stages[index], Stage::Settled(_)),
            "one outcome per event"
        );
        self.stages[index] = Stage::Settled(match outcome {
            // This sending did not land; an earlier one may have.
            Outcome::Failed(error) if self.in_doubt[index] => Outcome::Unknown(error),
            outcome => outcome,
        });
    }

    /// Concludes the confirmed events. To be called when nothing is in flight, or when everything
    /// that has arrived was taken note of: the driver hands a return out with any confirmation that
    /// comes after it, not later than its own. Gives the topics that work.
    pub(crate) fn conclude(&mut self) -> Vec<&'a str> {
        let mut delivered = vec![];
        for index in 0..self.stages.len() {
            if !matches!(self.stages[index], Stage::Confirmed) {
                continue;
            }
            if let Some(error) = self.returned.remove(&index) {
                self.settle(index, Outcome::Failed(error));
            } else {
                self.settle(index, Outcome::delivered());
                delivered.push(self.events[index].topic.as_str());
            }
        }
        delivered
    }

    /// Whether something was sent and not answered.
    pub(crate) fn is_open(&self) -> bool {
        let in_flight = |stage: &Stage| matches!(stage, Stage::InFlight);
        self.stages.iter().any(in_flight)
    }

    /// The outcomes, with what the end of the call means for the open events.
    pub(crate) fn finish(mut self, ended: Option<Error>) -> Vec<Outcome> {
        self.conclude();
        let ended = ended
            .unwrap_or_else(|| Error::new(ErrorKind::Internal, PUBLISH, "an event has no outcome"));
        let stages = self.stages.into_iter().zip(self.in_doubt);
        stages
            .map(|(stage, in_doubt)| match stage {
                Stage::Settled(outcome) => outcome,
                Stage::Waiting if !in_doubt => Outcome::Failed(ended.copy()),
                _ => Outcome::Unknown(ended.copy()),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Event, Position, Scope};

    use super::*;
    use crate::error;

    fn events(topics: &[&str]) -> Vec<StoredEvent> {
        let stored = |topic: &&str| {
            let event = Event::new(*topic, "T").bytes("x").unwrap();
            StoredEvent::from_event(&event, Position(1), time::OffsetDateTime::UNIX_EPOCH)
        };
        topics.iter().map(stored).collect()
    }

    fn missing() -> Outcome {
        let error = Error::new(ErrorKind::TopicNotFound, PUBLISH, "404");
        Outcome::Failed(error)
    }

    /// A letter for each outcome: delivered, rejected, failed, unknown.
    fn letters(outcomes: &[Outcome]) -> String {
        outcomes
            .iter()
            .filter_map(|outcome| outcome.as_str().chars().next())
            .collect()
    }

    /// Sends all that waits.
    fn send(batch: &mut Batch<'_>) -> Vec<usize> {
        let mut sent = vec![];
        while let Some(index) = batch.waiting() {
            batch.sent(index);
            sent.push(index);
        }
        sent
    }

    #[test]
    fn a_return_is_paired_by_its_id_whatever_comes_first() {
        let events = events(&["a", "b", "c", "b"]);
        let mut batch = Batch::new(&events);
        assert_eq!(send(&mut batch), [0, 1, 2, 3]);
        let no_route = || error::returned(312, "NO_ROUTE");
        batch.confirmed(0);
        batch.confirmed(1);
        let id = events[1].id.to_string();
        assert_eq!(batch.returned(&id, no_route()), Some("b"));
        assert_eq!(batch.returned("another call's", no_route()), None);
        batch.confirmed(2);
        batch.confirmed(3);
        assert_eq!(batch.conclude(), ["a", "c", "b"]);
        let outcomes = batch.finish(None);
        assert_eq!(letters(&outcomes), "dfdd");
        let error = outcomes[1].error().unwrap();
        assert_eq!(
            (error.kind(), error.failure_scope()),
            (ErrorKind::Unroutable, Scope::Topic)
        );
    }

    #[test]
    fn what_follows_a_returned_event_in_its_topic_is_not_sent() {
        let events = events(&["a", "b", "a", "b"]);
        let mut batch = Batch::new(&events);
        batch.sent(0);
        batch.sent(1);
        let error = error::returned(312, "NO_ROUTE");
        batch.returned(&events[1].id.to_string(), error).unwrap();
        assert_eq!(send(&mut batch), [2]);
        for index in 0..3 {
            batch.confirmed(index);
        }
        assert_eq!(letters(&batch.finish(None)), "dfdf");
    }

    #[test]
    fn what_follows_a_refused_event_in_its_topic_is_not_sent() {
        let events = events(&["e/a", "e/b", "e/a", "f/a", "e/b"]);
        let mut batch = Batch::new(&events);
        batch.sent(batch.next);
        batch.refuse(0, missing(), Blame::Topic);
        assert_eq!(send(&mut batch), [1, 3, 4]);
        let mut batch = Batch::new(&events);
        batch.sent(batch.next);
        batch.refuse(0, missing(), Blame::Exchange);
        assert_eq!(send(&mut batch), [3]);
        batch.confirmed(3);
        assert_eq!(letters(&batch.finish(None)), "fffdf");
        let mut batch = Batch::new(&events);
        batch.sent(batch.next);
        batch.refuse(0, missing(), Blame::Message);
        assert_eq!(send(&mut batch), [1, 2, 3, 4]);
    }

    #[test]
    fn after_a_closed_channel_the_innocent_go_again_in_order_and_one_by_one() {
        let events = events(&["a", "x/k", "a", "b"]);
        let mut batch = Batch::new(&events);
        for index in 0..3 {
            assert_eq!(batch.waiting(), Some(index));
            batch.sent(index);
        }
        batch.confirmed(0);
        batch.again(2, false);
        batch.again(1, true);
        batch.find_culprit_up_to(2);
        assert_eq!(batch.conclude(), ["a"]);
        assert_eq!(batch.waiting(), Some(1));
        assert!(batch.goes_alone(1));
        batch.sent(1);
        batch.refuse(1, missing(), Blame::Exchange);
        assert!(!batch.goes_alone(2), "the culprit is found");
        assert_eq!(send(&mut batch), [2, 3]);
        batch.confirmed(2);
        // Its first sending may have landed.
        assert_eq!(letters(&batch.finish(None)), "dudu");
    }

    #[test]
    fn one_by_one_ends_behind_the_suspects() {
        let events = events(&["a", "a", "a"]);
        let mut batch = Batch::new(&events);
        batch.find_culprit_up_to(1);
        assert!(batch.goes_alone(1));
        assert!(!batch.goes_alone(2));
        assert!(!batch.goes_alone(0));
    }

    #[test]
    fn an_early_end_leaves_doubt_only_about_what_was_sent() {
        let events = events(&["a", "b", "c", "d"]);
        let mut batch = Batch::new(&events);
        for index in 0..3 {
            assert_eq!(batch.waiting(), Some(index));
            batch.sent(index);
        }
        batch.confirmed(0);
        batch.again(2, true);
        assert!(batch.is_open());
        let ended = error::timeout(PUBLISH);
        assert_eq!(letters(&batch.finish(Some(ended))), "duuf");
    }
}
