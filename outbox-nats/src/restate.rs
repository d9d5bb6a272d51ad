//! Events that must be stored once more, behind one that the server refused.
//!
//! When a stream refuses e1 of a key and takes e2 behind it, e2 is published again after e1: a reader
//! who goes by the last event of a key is right again then. With the same message id the stream would
//! drop that second e2 as a copy, so it gets another. `event-id` stays what it is (I4).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use outbox_core::{Outcome, StoredEvent};
use uuid::Uuid;

/// More are forgotten, the oldest first; their second copy is dropped by the server then.
const REMEMBERED_MAX: usize = 10_000;

#[derive(Default)]
pub(crate) struct Restated(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    /// How often the event passed one that was refused.
    times: HashMap<Uuid, u32>,
    order: VecDeque<Uuid>,
}

impl Restated {
    /// By which the server knows copies of this event.
    pub(crate) fn message_id(&self, event: &StoredEvent) -> String {
        match self.memory().times.get(&event.id) {
            None => event.id.to_string(),
            // Shorter than the usual form, so that what was valid stays so.
            Some(times) => format!("{}-{}", event.id.simple(), times.min(&999)),
        }
    }

    /// Learns from a batch which events passed an earlier one of their key.
    pub(crate) fn note(&self, events: &[StoredEvent], outcomes: &[Outcome]) {
        let mut memory = self.memory();
        if memory.times.is_empty() && outcomes.iter().all(Outcome::is_delivered) {
            return;
        }
        let mut open: HashSet<&str> = HashSet::new();
        for (event, outcome) in events.iter().zip(outcomes) {
            let behind = event.key.as_deref().is_some_and(|key| open.contains(key));
            match (outcome.is_delivered(), behind) {
                (true, true) => memory.remember(event.id),
                (true, false) => memory.forget(event.id),
                (false, _) => {
                    open.extend(event.key.as_deref());
                }
            }
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn remember(&mut self, id: Uuid) {
        let times = self.times.entry(id).or_insert(0);
        *times += 1;
        if *times == 1 {
            self.order.push_back(id);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.times.remove(&oldest);
        }
    }

    fn forget(&mut self, id: Uuid) {
        if self.times.remove(&id).is_some() {
            self.order.retain(|known| *known != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Error, ErrorKind, Event, Position};
    use time::OffsetDateTime;

    use super::*;

    fn event(key: Option<&str>) -> StoredEvent {
        let event = Event::new("t", "T");
        let event = match key {
            Some(key) => event.key(key),
            None => event,
        };
        let event = event.bytes("x").unwrap();
        StoredEvent::from_event(&event, Position(1), OffsetDateTime::UNIX_EPOCH)
    }

    fn failed() -> Outcome {
        Outcome::Failed(Error::new(ErrorKind::OutOfSpace, "t", "t"))
    }

    #[test]
    fn i5_who_passed_a_refused_one_gets_another_id_until_it_is_in_its_place() {
        let restated = Restated::default();
        let events = [
            event(Some("a")),
            event(Some("b")),
            event(Some("a")),
            event(None),
        ];
        let plain: Vec<_> = events.iter().map(|event| event.id.to_string()).collect();
        let ids = |restated: &Restated| events.each_ref().map(|event| restated.message_id(event));
        assert_eq!(ids(&restated)[..], plain[..]);

        let outcomes = [
            failed(),
            Outcome::delivered(),
            Outcome::delivered(),
            Outcome::delivered(),
        ];
        restated.note(&events, &outcomes);
        let first = ids(&restated);
        assert_eq!(first[2], format!("{}-1", events[2].id.simple()));
        assert_eq!(
            (&first[0], &first[1], &first[3]),
            (&plain[0], &plain[1], &plain[3])
        );

        // In doubt it keeps the id, so that this copy is known again.
        restated.note(&events[2..3], &[failed()]);
        assert_eq!(ids(&restated)[2], first[2]);
        restated.note(&events, &outcomes);
        assert_eq!(ids(&restated)[2], format!("{}-2", events[2].id.simple()));

        restated.note(
            &events[..3],
            &[
                Outcome::delivered(),
                Outcome::delivered(),
                Outcome::delivered(),
            ],
        );
        assert_eq!(ids(&restated)[..], plain[..]);
    }

    #[test]
    fn i8_it_remembers_a_bounded_number() {
        let restated = Restated::default();
        let refused = event(Some("a"));
        let followers: Vec<_> = (0..=REMEMBERED_MAX).map(|_| event(Some("a"))).collect();
        let mut batch = vec![refused];
        batch.extend(followers.iter().cloned());
        let mut outcomes = vec![failed()];
        outcomes.extend(followers.iter().map(|_| Outcome::delivered()));
        restated.note(&batch, &outcomes);
        assert_eq!(
            restated.message_id(&followers[0]),
            followers[0].id.to_string()
        );
        assert_ne!(
            restated.message_id(&followers[1]),
            followers[1].id.to_string()
        );
        assert_eq!(restated.memory().times.len(), REMEMBERED_MAX);
        assert_eq!(restated.memory().order.len(), REMEMBERED_MAX);
    }
}
