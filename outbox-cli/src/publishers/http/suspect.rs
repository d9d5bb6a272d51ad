//! Tells a server that is down from an event that takes it down.

use std::sync::{Mutex, PoisonError};

use outbox_core::{Error, ErrorKind, Outcome, Scope};
use uuid::Uuid;

/// So often in a row an event may leave the server without an answer before it is held to be the
/// event's fault. The probe of a paused route is its oldest event each time: without a limit one
/// event whose handler never ends would stop its route for ever (I7).
const TIMES_MAX: u32 = 3;

/// The last event that got no answer, and how often in a row.
#[derive(Debug, Default)]
pub(super) struct Suspect(Mutex<Option<(Uuid, u32)>>);

impl Suspect {
    /// The outcome with the scope that it has in the light of others: an event in doubt, which is
    /// the destination's fault at first, is its own when the server answered others meanwhile and
    /// only this one took too long, or when it happens again and again.
    pub(super) fn judge(&self, id: Uuid, outcome: Outcome, answered_others: bool) -> Outcome {
        // Nothing panics under the lock.
        let mut suspect = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = suspect
            .filter(|(last, _)| *last == id)
            .map_or(0, |(_, times)| times);
        let error = match outcome {
            Outcome::Unknown(error) if error.failure_scope() == Scope::Destination => error,
            outcome => {
                if times > 0 {
                    *suspect = None;
                }
                return outcome;
            }
        };
        let is_slow = error.kind() == ErrorKind::Timeout && answered_others;
        if is_slow || times + 1 >= TIMES_MAX {
            *suspect = None;
            return Outcome::Unknown(own_fault(error));
        }
        *suspect = Some((id, times + 1));
        Outcome::Unknown(error)
    }
}

fn own_fault(error: Error) -> Error {
    error
        .scope(Scope::Message)
        .context("fault", "this event's, as it seems")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(suspect: &Suspect, id: u128, kind: ErrorKind, answered: bool) -> Scope {
        let outcome = Outcome::Unknown(Error::new(kind, "t", "t").scope(Scope::Destination));
        let outcome = suspect.judge(Uuid::from_u128(id), outcome, answered);
        assert_eq!(outcome.as_str(), "unknown");
        outcome.error().unwrap().failure_scope()
    }

    #[test]
    fn i7_an_event_that_takes_the_server_down_each_time_pays_for_itself() {
        for kind in [
            ErrorKind::Timeout,
            ErrorKind::ConnectionLost,
            ErrorKind::Unavailable,
        ] {
            let suspect = Suspect::default();
            for _ in 0..2 {
                assert_eq!(scope(&suspect, 1, kind, false), Scope::Destination);
                assert_eq!(scope(&suspect, 1, kind, false), Scope::Destination);
                assert_eq!(scope(&suspect, 1, kind, false), Scope::Message);
            }
        }
    }

    #[test]
    fn another_event_or_an_answer_starts_the_count_anew() {
        let suspect = Suspect::default();
        let timeout = |id| scope(&suspect, id, ErrorKind::Timeout, false);
        for id in [1, 1, 2, 2, 1, 1] {
            assert_eq!(timeout(id), Scope::Destination);
        }
        suspect.judge(Uuid::from_u128(2), Outcome::delivered(), true);
        let failed = Outcome::Failed(Error::new(ErrorKind::Unavailable, "t", "t"));
        suspect.judge(Uuid::from_u128(1), failed, true);
        assert_eq!([timeout(1), timeout(1)], [Scope::Destination; 2]);
        assert_eq!(timeout(1), Scope::Message);
    }

    #[test]
    fn an_event_that_alone_gets_no_answer_pays_at_once_a_lost_connection_does_not() {
        let suspect = Suspect::default();
        assert_eq!(scope(&suspect, 1, ErrorKind::Timeout, true), Scope::Message);
        let lost = scope(&suspect, 1, ErrorKind::ConnectionLost, true);
        assert_eq!(lost, Scope::Destination, "a server that restarts");
    }
}
