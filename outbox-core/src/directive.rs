//! The one table from what a publisher answered to what is done about it.

use crate::{
    error::{ErrorKind, Scope},
    outcome::Outcome,
};

/// What the table orders. Delays and counters are added by the delivery state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Directive {
    /// Delivered: write it down.
    Done,
    /// Try this event again later; the attempt counts.
    Retry,
    /// This event will not be tried again without an operator.
    DeadLetter,
    /// The topic is at fault: its events wait, no attempt is burnt.
    PauseTopic,
    /// The destination is at fault: the route waits, no attempt is burnt.
    PauseDestination,
}

/// The total table (outcome, kind, scope) → directive. Nothing else decides on retries.
///
/// A wider scope outranks the outcome's own word: a broker that rejects everything because the
/// password is wrong must not turn the backlog into dead letters. In message scope an event that
/// can't become valid by waiting is dead at once even when the publisher only said "failed".
pub fn classify(outcome: &Outcome) -> Directive {
    let Some(error) = outcome.error() else {
        return Directive::Done;
    };
    let hopeless = matches!(
        error.kind(),
        ErrorKind::InvalidEvent | ErrorKind::TooLarge | ErrorKind::InvalidTopic
    );
    match (error.failure_scope(), outcome) {
        (Scope::Destination, _) => Directive::PauseDestination,
        (Scope::Topic, _) => Directive::PauseTopic,
        (Scope::Message, Outcome::Rejected(_)) => Directive::DeadLetter,
        (Scope::Message, Outcome::Failed(_)) if hopeless => Directive::DeadLetter,
        (Scope::Message, _) => Directive::Retry,
    }
}

/// What an operator can do about a failure of this kind, in one sentence.
pub fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidEvent => {
            "correct what writes such events; discard this one or insert it anew"
        }
        ErrorKind::TooLarge => {
            "raise the broker's message limit, or keep the payload elsewhere and send a reference"
        }
        ErrorKind::InvalidTopic => "write a topic name that the destination allows",
        ErrorKind::Refused => "read the server's reason; requeue after it is gone",
        ErrorKind::Panic => {
            "a defect in the publisher: report it with the event; requeue after an update"
        }
        ErrorKind::TopicNotFound => "create the topic, or correct its name in the producer",
        ErrorKind::Unroutable => "bind a queue to the exchange for this routing key",
        ErrorKind::WrongTopicType => {
            "the name is taken by another kind of object: rename one of the two"
        }
        ErrorKind::Unauthorized => "grant the permission that the message names",
        ErrorKind::Unauthenticated => {
            "check user, password, token or certificate in the configuration"
        }
        ErrorKind::Unavailable => {
            "start the server or check host, port and network; a relay tries again by itself"
        }
        ErrorKind::ConnectionLost => {
            "check the server and the network; a relay tries again by itself"
        }
        ErrorKind::Timeout => {
            "check the load of the server and the network; a relay tries again by itself"
        }
        ErrorKind::Throttled => "the server asked for a pause; raise its quota if it is lasting",
        ErrorKind::OutOfSpace => "give the server memory or disk, or trim what it keeps",
        ErrorKind::ReadOnly => "point the address at the primary; a relay tries again by itself",
        ErrorKind::Conflict => "nothing to do: it is tried again at once",
        ErrorKind::LeaseLost => {
            "nothing to do: another worker took over; a longer lease makes it rarer"
        }
        ErrorKind::SchemaMissing => "run `outbox migrate`, or correct the schema name",
        ErrorKind::SchemaOlder => "run `outbox migrate`",
        ErrorKind::SchemaNewer => "update this program to the version that made the schema",
        ErrorKind::Configuration => "correct the setting that the message names",
        ErrorKind::Protocol => {
            "check that the address belongs to the right kind of server and version"
        }
        ErrorKind::Internal => "a defect: report it with the log around it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Every row of the table: outcome × kind × scope.
    #[test]
    fn every_row_has_one_directive() {
        let scopes = [Scope::Message, Scope::Topic, Scope::Destination];
        let outcomes: [fn(Error) -> Outcome; 3] =
            [Outcome::Rejected, Outcome::Failed, Outcome::Unknown];
        for kind in ErrorKind::ALL {
            for scope in scopes {
                for (index, outcome) in outcomes.iter().enumerate() {
                    let directive = classify(&outcome(Error::new(*kind, "t", "t").scope(scope)));
                    let hopeless = matches!(
                        kind,
                        ErrorKind::InvalidEvent | ErrorKind::TooLarge | ErrorKind::InvalidTopic
                    );
                    let expected = match (scope, index) {
                        (Scope::Destination, _) => Directive::PauseDestination,
                        (Scope::Topic, _) => Directive::PauseTopic,
                        (Scope::Message, 0) => Directive::DeadLetter,
                        (Scope::Message, 1) if hopeless => Directive::DeadLetter,
                        (Scope::Message, _) => Directive::Retry,
                    };
                    assert_eq!(directive, expected, "{kind} {scope:?} {index}");
                }
            }
            assert!(remedy(*kind).len() > 10);
        }
        assert_eq!(classify(&Outcome::delivered()), Directive::Done);
    }
}
