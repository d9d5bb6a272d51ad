//! One call: its events, what became of them, its producer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use outbox_core::{Encoding, Error, ErrorKind, Outcome, Receipt, Result, Scope, StoredEvent};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    context::{Answer, Ticket},
    error,
    lease::{Handed, Lease},
    properties::Batching,
    wire,
};

/// librdkafka counts a record as queued for a moment after its answer is here, so that the last
/// answer may leave no later one to wait for.
const QUEUE_TICK: Duration = Duration::from_millis(5);

/// How soon it is noticed that the producer has ended itself without answering for every record, as
/// it does before it was given an id.
const FATAL_TICK: Duration = Duration::from_millis(100);

/// Kept outside of the work, so that it survives the work's end by the deadline.
pub(crate) struct Batch<'e> {
    events: &'e [StoredEvent],
    outcomes: Vec<Option<Outcome>>,
    /// Which were handed over, and not refused since: those may have landed.
    sent: Vec<bool>,
    /// Which were handed over twice, and not refused the first time.
    before: Vec<bool>,
    /// Which were refused with a batch of records, perhaps for a neighbour's sake.
    again: BTreeSet<usize>,
    /// Why no more of a topic is sent.
    topic_stops: BTreeMap<&'e str, Error>,
    /// Why nothing more is sent.
    stop: Option<Error>,
    lease: Option<Lease>,
    tickets: mpsc::UnboundedSender<Answer>,
    answers: mpsc::UnboundedReceiver<Answer>,
}

impl<'e> Batch<'e> {
    pub(crate) fn new(events: &'e [StoredEvent]) -> Self {
        let (tickets, answers) = mpsc::unbounded_channel();
        Self {
            events,
            outcomes: std::iter::repeat_with(|| None).take(events.len()).collect(),
            sent: vec![false; events.len()],
            before: vec![false; events.len()],
            again: BTreeSet::new(),
            topic_stops: BTreeMap::new(),
            stop: None,
            lease: None,
            tickets,
            answers,
        }
    }

    pub(crate) fn settle(&mut self, index: usize, outcome: Outcome) {
        debug_assert!(self.is_open(index), "one outcome per event");
        self.outcomes[index] = Some(outcome);
    }

    fn is_open(&self, index: usize) -> bool {
        self.outcomes[index].is_none()
    }

    /// The events without an outcome, in order.
    pub(crate) fn open(&self) -> Vec<usize> {
        (0..self.events.len())
            .filter(|index| self.is_open(*index))
            .collect()
    }

    /// The producer for what follows; the one before is given back.
    pub(crate) fn take_lease(&mut self, lease: Option<Lease>) {
        self.lease = lease;
    }

    /// Hands these events over in their order and waits for all answers. A full queue is no
    /// failure: it waits for answers.
    ///
    /// # Errors
    /// Why the rest was not sent, or why no more answers come.
    pub(crate) async fn send(&mut self, indices: &[usize], encoding: &Encoding) -> Result<()> {
        for &index in indices {
            self.hand_over(index, encoding).await?;
            if self.stop.is_some() {
                break;
            }
        }
        while self.outstanding() > 0 {
            match timeout(FATAL_TICK, self.answers.recv()).await {
                Ok(Some(answer)) => self.take(answer),
                Ok(None) => return Err(error::internal("no answer comes")),
                Err(_) => {
                    if let Some(code) = self.fatal() {
                        return Err(error::fatal(code));
                    }
                }
            }
        }
        self.stop.as_ref().map_or(Ok(()), |error| Err(error.copy()))
    }

    async fn hand_over(&mut self, index: usize, encoding: &Encoding) -> Result<()> {
        let events = self.events;
        let event = &events[index];
        loop {
            // Answers that are here say whether it goes on.
            while let Ok(answer) = self.answers.try_recv() {
                self.take(answer);
            }
            if self.stop.is_some() {
                return Ok(());
            }
            if let Some(error) = self.topic_stops.get(event.topic.as_str()) {
                let outcome = self.unsent(index, error.copy());
                self.settle(index, outcome);
                return Ok(());
            }
            let headers = wire::headers(event, encoding)?;
            let ticket = Ticket {
                index,
                answers: self.tickets.clone(),
            };
            let Some(lease) = &mut self.lease else {
                return Err(error::internal("a call without a producer"));
            };
            match lease.send(event, headers, ticket) {
                Handed::Over => {
                    self.sent[index] = true;
                    return Ok(());
                }
                Handed::Full => {
                    if let Ok(Some(answer)) = timeout(QUEUE_TICK, self.answers.recv()).await {
                        self.take(answer);
                    }
                }
                Handed::Refused(code) => {
                    let error = match lease.fatal() {
                        Some(fatal) => Outcome::Failed(error::fatal(fatal)),
                        None => error::outcome(code),
                    };
                    self.conclude(index, error);
                    return Ok(());
                }
            }
        }
    }

    /// The outcome of an event that is not sent now; it may have been before.
    fn unsent(&self, index: usize, error: Error) -> Outcome {
        if self.sent[index] {
            Outcome::Unknown(error)
        } else {
            Outcome::Failed(error)
        }
    }

    fn outstanding(&self) -> usize {
        self.lease.as_ref().map_or(0, Lease::outstanding)
    }

    fn take(&mut self, answer: Answer) {
        let Some(lease) = &mut self.lease else {
            return;
        };
        lease.answered();
        let index = answer.index;
        let code = match answer.result {
            Ok(place) => {
                let receipt = Receipt {
                    position: Some(place.to_string()),
                    duplicate: false,
                };
                return self.settle(index, Outcome::Delivered(receipt));
            }
            Err(code) => code,
        };
        if let Some(fatal) = lease.fatal() {
            let fatal = error::fatal(fatal);
            return self.conclude(index, Outcome::Unknown(fatal));
        }
        let single = lease.batching() == Batching::Single;
        let outcome = error::outcome(code);
        let of_message = |error: &Error| error.failure_scope() == Scope::Message;
        if !single && outcome.error().is_some_and(of_message) {
            // A broker refuses whole batches of records, for one of them.
            self.again.insert(index);
        } else if matches!(code, Code::PurgeQueue | Code::PurgeInflight) {
            // Taken back at the end of the call, which has its own reason: it stays open.
        } else {
            self.conclude(index, outcome);
        }
    }

    /// Settles, and takes note of what it means for those behind.
    fn conclude(&mut self, index: usize, outcome: Outcome) {
        if let Some(error) = outcome.error() {
            match error.failure_scope() {
                Scope::Message => {}
                Scope::Topic => {
                    let topic = self.events[index].topic.as_str();
                    self.topic_stops
                        .entry(topic)
                        .or_insert_with(|| error.copy());
                }
                Scope::Destination => {
                    self.stop.get_or_insert_with(|| error.copy());
                }
            }
        }
        let outcome = match outcome {
            // This time it did not land, but the time before it may have.
            Outcome::Failed(error) | Outcome::Rejected(error) if self.before[index] => {
                Outcome::Unknown(error)
            }
            outcome => outcome,
        };
        self.settle(index, outcome);
    }

    /// Those refused with a batch of records, and what follows them by key: that goes out again
    /// after them, whether or not it was stored before. All of them are open again.
    pub(crate) fn take_again(&mut self) -> Vec<usize> {
        let refused = std::mem::take(&mut self.again);
        let mut keys = BTreeSet::new();
        let mut again = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            let key = event.key.as_deref().map(|key| (event.topic.as_str(), key));
            if refused.contains(&index) {
                self.sent[index] = false;
                keys.extend(key);
            } else if self.sent[index] && key.is_some_and(|key| keys.contains(&key)) {
                self.before[index] = true;
                self.outcomes[index] = None;
            } else {
                continue;
            }
            again.push(index);
        }
        again
    }

    /// Why the producer has ended itself, if it has.
    pub(crate) fn fatal(&self) -> Option<Code> {
        self.lease.as_ref().and_then(Lease::fatal)
    }

    /// What it means that the time is over, with what librdkafka complained about.
    pub(crate) fn late(&self) -> Error {
        let error = error::timeout(error::PUBLISH);
        let complaint = self.lease.as_ref().and_then(Lease::take_complaint);
        match complaint {
            Some((_, text)) => error.context("librdkafka", text),
            None => error,
        }
    }

    /// Takes back what has no answer; waits until it is answered for, or the time is over.
    pub(crate) async fn take_back(&mut self, until: Instant) {
        if self.outstanding() == 0 {
            return;
        }
        let Some(taken_back) = self.lease.as_mut().and_then(Lease::retire) else {
            return;
        };
        let answers = async {
            let _ = taken_back.await;
            while self.outstanding() > 0 {
                let Some(answer) = self.answers.recv().await else {
                    break;
                };
                self.take(answer);
            }
        };
        let _ = timeout_at(until, answers).await;
    }

    /// The topics of which something is in doubt or missing.
    pub(crate) fn doubtful_topics(&self) -> BTreeSet<&'e str> {
        let all = self.events.iter().zip(&self.outcomes);
        let doubtful = all.filter(|(_, outcome)| match outcome {
            None | Some(Outcome::Unknown(_)) => true,
            Some(Outcome::Failed(error)) => error.failure_scope() == Scope::Topic,
            Some(Outcome::Delivered(_) | Outcome::Rejected(_)) => false,
        });
        doubtful.map(|(event, _)| event.topic.as_str()).collect()
    }

    /// The outcomes, with what the end of the call means for the open events.
    pub(crate) fn finish(self, ended: Result<()>) -> Vec<Outcome> {
        let ended = ended
            .err()
            .unwrap_or_else(|| error::internal("an event has no outcome"));
        let delivered = self.outcomes.iter().zip(self.events);
        let working: BTreeSet<&str> = delivered
            .filter(|(outcome, _)| outcome.as_ref().is_some_and(Outcome::is_delivered))
            .map(|(_, event)| event.topic.as_str())
            .collect();
        let all = self.outcomes.into_iter().zip(self.events).zip(self.sent);
        all.map(|((outcome, event), sent)| {
            outcome.unwrap_or_else(|| {
                let mut error = ended.copy();
                // Where other topics take events, one that does not pays for itself (I7).
                let elsewhere = !working.is_empty() && !working.contains(event.topic.as_str());
                if sent && elsewhere && error.kind() == ErrorKind::Timeout {
                    error = error.scope(Scope::Topic).context("topic", &event.topic);
                }
                if sent {
                    Outcome::Unknown(error)
                } else {
                    Outcome::Failed(error)
                }
            })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Event, Position};

    use super::*;

    fn events(keys: &[&str]) -> Vec<StoredEvent> {
        let stored = |key: &&str| {
            let event = Event::new("t", "T").key(*key).bytes("x").unwrap();
            StoredEvent::from_event(&event, Position(1), time::OffsetDateTime::UNIX_EPOCH)
        };
        keys.iter().map(stored).collect()
    }

    fn failed(scope: Scope) -> Outcome {
        let error = Error::new(ErrorKind::Unavailable, error::PUBLISH, "no").scope(scope);
        Outcome::Failed(error)
    }

    /// What follows a refused record by key goes again behind it, also where it was stored; if it is
    /// refused then, it is in doubt, for its first sending may be there.
    #[test]
    fn i5_who_follows_a_refused_record_goes_again_and_is_in_doubt() {
        let events = events(&["a", "b", "a", "b", "a"]);
        let mut batch = Batch::new(&events);
        batch.sent = vec![true, true, true, true, false];
        for index in [0, 2, 3] {
            batch.settle(index, Outcome::delivered());
        }
        batch.again.insert(1);
        assert_eq!(batch.take_again(), [1, 3]);
        assert_eq!(batch.open(), [1, 3, 4]);
        assert_eq!(batch.take_again(), [0; 0], "once only");
        for index in [1, 3] {
            batch.conclude(index, failed(Scope::Message));
        }
        let outcomes = batch.finish(Err(error::timeout(error::PUBLISH)));
        let names: Vec<_> = outcomes.iter().map(Outcome::as_str).collect();
        let expected = ["delivered", "failed", "delivered", "unknown", "failed"];
        assert_eq!(names, expected);
    }

    /// Nothing more is handed over of a topic that was refused, nor to brokers that are gone: later
    /// events of a key must not be stored without the earlier ones. Without a producer, handing over
    /// is an error here.
    #[tokio::test]
    async fn i5_nothing_follows_a_refused_topic_or_destination() {
        let events = events(&["a", "b"]);
        for (scope, then) in [(Scope::Topic, Some("failed")), (Scope::Destination, None)] {
            let mut batch = Batch::new(&events);
            batch.conclude(0, failed(scope));
            batch.hand_over(1, &Encoding::Plain).await.unwrap();
            let outcome = batch.outcomes[1].as_ref().map(Outcome::as_str);
            assert_eq!(outcome, then, "{scope:?}");
        }
        let mut batch = Batch::new(&events);
        batch.conclude(0, failed(Scope::Message));
        batch.hand_over(1, &Encoding::Plain).await.unwrap_err();
    }
}
