//! Deliberate faults, and the invariants that they break.

use std::fmt;

use crate::memory;

/// A deliberate fault of the engine or of the in-memory store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Of the relay engine.
    Engine(outbox_core::Mutation),
    /// Of the store.
    Store(memory::Mutation),
}

impl Mutation {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let engine = outbox_core::Mutation::ALL.into_iter().map(Self::Engine);
        engine.chain(memory::Mutation::ALL.into_iter().map(Self::Store))
    }

    /// The invariant that this breaks first; the checker must name it, whatever follows from it.
    pub fn breaks(self) -> &'static str {
        use memory::Mutation as S;
        use outbox_core::Mutation as E;
        match self {
            Self::Store(S::RollbackCommits) => "I1",
            Self::Engine(E::ShutdownDropsInFlight) | Self::Store(S::LastVerdictForgotten) => "I2",
            Self::Engine(E::SettleBeforeAck | E::UnknownIsDelivered) => "I3",
            Self::Store(S::ParkedEventChanges) => "I4",
            Self::Engine(
                E::RetryOvertakesKey
                | E::HoldForgotten
                | E::WaveLimitIgnored
                | E::RewindKeepsClaims
                | E::UnblockedTooEarly
                | E::LostClaimIgnored
                | E::PanicForgetsKeys
                | E::DroppedBatchIgnored,
            )
            | Self::Store(
                S::DroppedBatchKeepsNext
                | S::RequeueBehindFollowers
                | S::ScheduledPassesStream
                | S::ClockPutsOff,
            ) => "I5",
            Self::Engine(E::EndedLeaseSent) | Self::Store(S::FenceIgnored | S::LeaseIgnored) => {
                "I6"
            }
            Self::Engine(E::TopicPausesRoute) => "I7",
            Self::Engine(E::AttemptsWithoutEnd) => "I8",
            Self::Engine(E::OutageBurnsAttempts)
            | Self::Store(S::AttemptsCountedTwice | S::CrashWithoutFlight | S::SuspectsTogether) => {
                "I9"
            }
        }
    }

    /// The mutation of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|mutation| mutation.to_string() == name)
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(mutation) => write!(f, "{mutation:?}"),
            Self::Store(mutation) => write!(f, "{mutation:?}"),
        }
    }
}
