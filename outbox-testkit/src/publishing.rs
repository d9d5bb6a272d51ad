//! What the tests of each publisher's own crate share: numbered events, and what became of them.

use std::{collections::HashSet, ops::Range, time::Duration};

use outbox_core::{Error, ErrorKind, Event, Outcome, Position, Publisher, Scope, StoredEvent};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// The URL of a shared server, from the variable that the integration run sets.
///
/// # Panics
/// When the variable is not set: a suite that did not run proves nothing.
pub fn shared_url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run these tests by `cargo xtask integration`")
    })
}

/// A name that no other test uses.
pub fn unique(name: &str) -> String {
    format!("{name}-{}", Uuid::new_v4())
}

/// The event as if it had just been written.
pub fn stored(event: &Event) -> StoredEvent {
    StoredEvent::from_event(event, Position(0), OffsetDateTime::now_utc())
}

/// An event of the key `k` whose payload is its number.
///
/// # Panics
/// When the topic is none.
pub fn numbered(topic: &str, number: usize) -> StoredEvent {
    let event = Event::new(topic, "Counted").key("k");
    stored(&event.bytes(number.to_string()).expect("a valid event"))
}

/// Such events in their order.
pub fn numbers(topic: &str, range: Range<usize>) -> Vec<StoredEvent> {
    range.map(|number| numbered(topic, number)).collect()
}

/// The numbers in their order, each at its first appearance.
pub fn first_appearances(numbers: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut seen = HashSet::new();
    let numbers = numbers.into_iter();
    numbers.filter(|number| seen.insert(*number)).collect()
}

/// Asserts that each was delivered.
///
/// # Panics
/// When one was not.
#[track_caller]
pub fn all_delivered(outcomes: &[Outcome]) {
    for (index, outcome) in outcomes.iter().enumerate() {
        assert!(outcome.is_delivered(), "{index}: {outcome:?}");
    }
}

/// Asserts kind and scope of a failure that did not land.
///
/// # Panics
/// When it is another outcome.
#[track_caller]
pub fn failed(outcome: &Outcome, kind: ErrorKind, scope: Scope) -> &Error {
    let Outcome::Failed(error) = outcome else {
        panic!("{outcome:?}");
    };
    of(error, kind, scope)
}

/// Asserts kind and scope of a failure that left doubt.
///
/// # Panics
/// When it is another outcome.
#[track_caller]
pub fn unknown(outcome: &Outcome, kind: ErrorKind, scope: Scope) -> &Error {
    let Outcome::Unknown(error) = outcome else {
        panic!("{outcome:?}");
    };
    of(error, kind, scope)
}

#[track_caller]
fn of(error: &Error, kind: ErrorKind, scope: Scope) -> &Error {
    assert_eq!(
        (error.kind(), error.failure_scope()),
        (kind, scope),
        "{error}"
    );
    error
}

/// What it took until everything was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repeats {
    /// Calls with an event that was not delivered.
    pub calls: usize,
    /// Events behind the delivered beginning of such a call that may have landed.
    pub events: usize,
}

/// Publishes as a relay does, up to 200 events a call: it goes on behind the delivered beginning,
/// after a pause.
///
/// # Panics
/// When that takes longer than `patience`, or a call has another number of outcomes than events.
pub async fn publish_all(
    publisher: &dyn Publisher,
    events: &[StoredEvent],
    patience: Duration,
    pause: Duration,
) -> Repeats {
    let deadline = Instant::now() + patience;
    let mut repeats = Repeats::default();
    let mut left = events;
    while !left.is_empty() {
        let batch = &left[..left.len().min(200)];
        let outcomes = publisher.publish(batch).await;
        assert_eq!(outcomes.len(), batch.len());
        let delivered = outcomes.iter().take_while(|o| o.is_delivered()).count();
        let behind = &outcomes[delivered..];
        left = &left[delivered..];
        if let Some(first) = behind.first() {
            repeats.calls += 1;
            let may_have_landed = |o: &&Outcome| !matches!(o, Outcome::Failed(_));
            repeats.events += behind.iter().filter(may_have_landed).count();
            assert!(Instant::now() < deadline, "it does not recover: {first:?}");
            sleep(pause).await;
        }
    }
    repeats
}
