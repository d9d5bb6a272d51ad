//! When each event of the run was written and acknowledged.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use outbox_core::{Capabilities, FailureNote, Outcome, Publisher, Result, StoredEvent};
use uuid::Uuid;

/// What is known of every event. Ids are those of one UUIDv7 with the event's number in its last 32
/// bits: unique like any other, and no map from ids to numbers is needed.
pub(super) struct Ledger {
    base: u128,
    state: Mutex<State>,
}

const NUMBER: u128 = u32::MAX as u128;

#[derive(Default)]
struct State {
    events: Vec<Entry>,
    /// Where the part of the run that is under way begins.
    first: usize,
    written: u32,
    delivered: u32,
    /// When the relay handed the part's first event to the broker, and when the last answer came.
    handed_at: Option<Instant>,
    answered_at: Option<Instant>,
    others: u64,
    last_failure: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    commit: Option<Commit>,
    acknowledged_at: Option<Instant>,
    waits: bool,
}

#[derive(Clone, Copy)]
struct Commit {
    began: Instant,
    at: Instant,
}

impl Commit {
    fn took(&self) -> Duration {
        self.at - self.began
    }
}

/// How far a part of the run is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) written: u32,
    pub(super) delivered: u32,
}

/// What a part of the run took.
pub(super) struct Times {
    pub(super) progress: Progress,
    /// From the begin of the first write to the answer of the last commit.
    pub(super) writing: Duration,
    /// From handing the first event to the broker to the last acknowledgement.
    pub(super) relaying: Duration,
    /// From the begin of a write to the answer of its commit.
    pub(super) commits: Vec<Duration>,
    /// From the answer of a commit to the acknowledgement; none where that came first.
    pub(super) deliveries: Vec<Duration>,
}

/// What is known of the events that were written and not delivered.
#[derive(Clone, Copy)]
pub(super) struct Missing {
    pub(super) total: u32,
    /// Found in the store, due.
    pub(super) waiting: u32,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self {
            base: Uuid::now_v7().as_u128() & !NUMBER,
            state: Mutex::default(),
        }
    }

    /// Begins the next part, of this many events; gives the number of its first one.
    pub(super) fn begin(&self, count: u32) -> u32 {
        let mut state = self.state();
        state.first = state.events.len();
        let events = state.first + index(count);
        state.events.resize(events, Entry::default());
        state.written = 0;
        state.delivered = 0;
        state.handed_at = None;
        state.answered_at = None;
        u32::try_from(state.first).unwrap_or(u32::MAX)
    }

    /// The id of the event of this number.
    pub(super) fn id(&self, number: u32) -> Uuid {
        Uuid::from_u128(self.base | u128::from(number))
    }

    /// Its commit was answered now.
    pub(super) fn committed(&self, number: u32, began: Instant) {
        let at = Instant::now();
        let mut state = self.state();
        state.written += 1;
        state.events[index(number)].commit = Some(Commit { began, at });
    }

    /// Whether it is an event of this run; if so, it is due in the store.
    pub(super) fn found(&self, id: Uuid) {
        let mut state = self.state();
        if let Some(number) = self.number(&state, id) {
            state.events[number].waits = true;
        }
    }

    pub(super) fn progress(&self) -> Progress {
        self.state().progress()
    }

    /// Events of the topic that are not of this run and were delivered with it.
    pub(super) fn others(&self) -> u64 {
        self.state().others
    }

    /// What the broker's last failure was.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.state().last_failure.clone()
    }

    /// The times of the part that is under way.
    pub(super) fn times(&self) -> Times {
        let state = self.state();
        let part = &state.events[state.first..];
        let commits = part.iter().filter_map(|event| event.commit);
        let began = commits.clone().map(|commit| commit.began).min();
        let ended = commits.clone().map(|commit| commit.at).max();
        let deliveries = part.iter().filter_map(|event| {
            let acknowledged_at = event.acknowledged_at?;
            Some(acknowledged_at.saturating_duration_since(event.commit?.at))
        });
        Times {
            progress: state.progress(),
            writing: between(began, ended),
            relaying: between(state.handed_at, state.answered_at),
            commits: commits.clone().map(|commit| commit.took()).collect(),
            deliveries: deliveries.collect(),
        }
    }

    /// What is known of the events that are not delivered.
    pub(super) fn missing(&self) -> Missing {
        let state = self.state();
        let missing: Vec<_> = state
            .events
            .iter()
            .filter(|event| event.commit.is_some() && event.acknowledged_at.is_none())
            .collect();
        let count = |fits: fn(&Entry) -> bool| {
            let fitting = missing.iter().filter(|event| fits(event));
            u32::try_from(fitting.count()).unwrap_or(u32::MAX)
        };
        Missing {
            total: count(|_| true),
            waiting: count(|event| event.waits),
        }
    }

    fn handed(&self, events: &[StoredEvent]) {
        let now = Instant::now();
        let mut state = self.state();
        if state.handed_at.is_none() && events.iter().any(|e| self.number(&state, e.id).is_some()) {
            state.handed_at = Some(now);
        }
    }

    fn answered(&self, events: &[StoredEvent], outcomes: &[Outcome]) {
        let now = Instant::now();
        let mut state = self.state();
        for (event, outcome) in events.iter().zip(outcomes) {
            let number = self.number(&state, event.id);
            match (number, outcome.error()) {
                (None, None) => state.others += 1,
                (None, Some(_)) => {}
                (Some(number), None) => {
                    // A copy tells nothing new.
                    if state.events[number].acknowledged_at.is_none() {
                        state.events[number].acknowledged_at = Some(now);
                        state.delivered += 1;
                        state.answered_at = Some(now);
                    }
                }
                (Some(_), Some(error)) => {
                    state.last_failure = Some(FailureNote::from_error(error).text);
                }
            }
        }
    }

    fn number(&self, state: &State, id: Uuid) -> Option<usize> {
        let id = id.as_u128();
        let number = usize::try_from(id & NUMBER).ok()?;
        (id & !NUMBER == self.base && number < state.events.len()).then_some(number)
    }

    /// Plain data, whole after every statement on it, so a panic elsewhere can't have broken it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn progress(&self) -> Progress {
        Progress {
            written: self.written,
            delivered: self.delivered,
        }
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn between(began: Option<Instant>, ended: Option<Instant>) -> Duration {
    let span = began.zip(ended).map(|(began, ended)| ended - began);
    span.unwrap_or_default()
}

/// The user's publisher, watched.
pub(super) struct Watched {
    pub(super) publisher: Arc<dyn Publisher>,
    pub(super) ledger: Arc<Ledger>,
}

#[async_trait]
impl Publisher for Watched {
    fn name(&self) -> &'static str {
        self.publisher.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.publisher.capabilities()
    }

    // Not `validate`: what is refused shall come to `publish`, where it is told.
    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        self.ledger.handed(events);
        let outcomes = self.publisher.publish(events).await;
        self.ledger.answered(events, &outcomes);
        outcomes
    }

    async fn check(&self) -> Result<()> {
        self.publisher.check().await
    }

    async fn close(&self, grace: Duration) {
        self.publisher.close(grace).await;
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Error, ErrorKind};

    use super::*;
    use crate::event_json::tests::stored;

    fn event(id: Uuid) -> StoredEvent {
        StoredEvent {
            id,
            ..stored("text/plain", Some(b"x"))
        }
    }

    fn failed() -> Outcome {
        Outcome::Failed(Error::new(ErrorKind::Unavailable, "publish", "down"))
    }

    #[test]
    fn copies_and_other_events_are_not_counted_and_each_part_by_itself() {
        let ledger = Ledger::new();
        assert_eq!(ledger.begin(2), 0);
        let began = Instant::now();
        ledger.committed(0, began);
        ledger.committed(1, began);
        let events = [ledger.id(0), ledger.id(0), Uuid::now_v7(), ledger.id(7)].map(event);
        let outcomes = [(); 4].map(|()| Outcome::delivered());
        ledger.handed(&events);
        ledger.answered(&events, &outcomes);
        let progress = ledger.progress();
        assert_eq!((progress.written, progress.delivered), (2, 1));
        assert_eq!(ledger.others(), 2, "those of an unknown id or number");
        let times = ledger.times();
        assert_eq!((times.commits.len(), times.deliveries.len()), (2, 1));

        assert_eq!(ledger.begin(1), 2);
        let progress = ledger.progress();
        assert_eq!((progress.written, progress.delivered), (0, 0));
        assert_eq!(ledger.missing().total, 1, "of all parts");
    }

    /// The relay may be faster than the task that waits for the answer of the commit.
    #[test]
    fn an_acknowledgement_before_the_answer_of_the_commit_took_no_time() {
        let ledger = Ledger::new();
        ledger.begin(1);
        ledger.answered(&[event(ledger.id(0))], &[Outcome::delivered()]);
        ledger.committed(0, Instant::now());
        assert_eq!(ledger.times().deliveries, [Duration::ZERO]);
    }

    #[test]
    fn what_is_missing_was_written_and_not_delivered_and_perhaps_waits() {
        let ledger = Ledger::new();
        ledger.begin(4);
        for number in 0..3 {
            ledger.committed(number, Instant::now());
        }
        let tried = [0, 1].map(|number| event(ledger.id(number)));
        ledger.answered(&tried, &[failed(), failed()]);
        ledger.answered(&tried[..1], &[Outcome::delivered()]);
        ledger.found(ledger.id(1));
        ledger.found(Uuid::now_v7());
        let missing = ledger.missing();
        assert_eq!((missing.total, missing.waiting), (2, 1));
        assert!(ledger.last_failure().unwrap().contains("unavailable: down"));
    }
}
