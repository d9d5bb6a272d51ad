//! How far a call has come: kept outside of its work, so that it survives the work's end by the
//! deadline.

use std::collections::BTreeMap;

use outbox_core::{Error, ErrorKind, Outcome, Result};

use crate::error::PUBLISH;

pub(crate) struct Progress {
    outcomes: Vec<Option<Outcome>>,
    /// Sent and not answered, with their bytes.
    in_flight: BTreeMap<usize, usize>,
    in_flight_bytes: usize,
    /// The connection in use.
    pub(crate) generation: Option<u64>,
}

impl Progress {
    pub(crate) fn new(events: usize) -> Self {
        Self {
            outcomes: std::iter::repeat_with(|| None).take(events).collect(),
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            generation: None,
        }
    }

    /// From here on the event may land, whatever happens to the call.
    pub(crate) fn sent(&mut self, index: usize, bytes: usize) {
        self.in_flight.insert(index, bytes);
        self.in_flight_bytes += bytes;
    }

    /// It did not land after all.
    pub(crate) fn did_not_land(&mut self, index: usize) {
        if let Some(bytes) = self.in_flight.remove(&index) {
            self.in_flight_bytes -= bytes;
        }
    }

    pub(crate) fn settle(&mut self, index: usize, outcome: Outcome) {
        debug_assert!(self.outcomes[index].is_none(), "one outcome per event");
        self.did_not_land(index);
        self.outcomes[index] = Some(outcome);
    }

    pub(crate) fn is_in_flight(&self, index: usize) -> bool {
        self.in_flight.contains_key(&index)
    }

    pub(crate) fn in_flight(&self) -> impl Iterator<Item = usize> {
        self.in_flight.keys().copied()
    }

    pub(crate) fn nothing_in_flight(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether one more event of this size fits; a single one always does.
    pub(crate) fn has_room(&self, bytes: usize, events_max: usize, bytes_max: usize) -> bool {
        self.in_flight.is_empty()
            || (self.in_flight.len() < events_max
                && self.in_flight_bytes.saturating_add(bytes) <= bytes_max)
    }

    /// The outcomes, with what the end of the call means for the open events.
    pub(crate) fn finish(self, ended: Result<()>) -> Vec<Outcome> {
        let ended = ended
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Internal, PUBLISH, "an event has no outcome"));
        let in_flight = self.in_flight;
        let outcomes = self.outcomes.into_iter().enumerate();
        outcomes
            .map(|(index, outcome)| {
                outcome.unwrap_or_else(|| {
                    if in_flight.contains_key(&index) {
                        Outcome::Unknown(ended.copy())
                    } else {
                        Outcome::Failed(ended.copy())
                    }
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{broken, timeout};

    #[test]
    fn what_was_sent_is_in_doubt_and_the_rest_failed() {
        let mut progress = Progress::new(5);
        progress.sent(0, 10);
        progress.sent(1, 10);
        progress.sent(2, 10);
        progress.settle(0, Outcome::delivered());
        progress.did_not_land(2);
        progress.settle(3, Outcome::Rejected(broken()));
        assert!(progress.is_in_flight(1) && !progress.is_in_flight(2));
        let outcomes = progress.finish(Err(timeout(PUBLISH)));
        let names: Vec<_> = outcomes.iter().map(Outcome::as_str).collect();
        assert_eq!(
            names,
            ["delivered", "unknown", "failed", "rejected", "failed"]
        );
    }

    #[test]
    fn i8_the_window_is_bounded_but_one_event_always_fits() {
        let mut progress = Progress::new(9);
        assert!(progress.has_room(usize::MAX, 1, 1));
        progress.sent(0, 10);
        progress.sent(1, 10);
        assert!(progress.has_room(10, 3, 30));
        assert!(!progress.has_room(11, 3, 30));
        assert!(!progress.has_room(1, 2, 30));
        progress.settle(0, Outcome::delivered());
        assert!(progress.has_room(20, 2, 30));
    }
}
