//! Deliberate faults of the engine. The simulation switches one on to prove that its checker notices.

/// A fault that a relay is built with by [`RelayBuilder::mutation`](super::RelayBuilder::mutation).
/// Not for use: each breaks an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Events are settled as delivered before they are sent.
    SettleBeforeAck,
    /// Followers of a blocked key are sent.
    RetryOvertakesKey,
    /// A failure of the topic or the destination counts as the event's own.
    OutageBurnsAttempts,
    /// A new owner of a lane does not ask which keys are blocked.
    HoldForgotten,
    /// An unknown outcome is settled as delivered.
    UnknownIsDelivered,
    /// Events of one key are sent together where the publisher keeps no order in flight.
    WaveLimitIgnored,
    /// A stop does not wait for what is being sent.
    ShutdownDropsInFlight,
    /// A batch is sent although its lease has ended.
    EndedLeaseSent,
    /// Claims made before the cursor went back are sent.
    RewindKeepsClaims,
    /// A key is unblocked while a batch that is not settled parks something of it.
    UnblockedTooEarly,
    /// The lane is worked on after a batch could not be settled in time.
    DroppedBatchIgnored,
    /// A lane is worked on after a claim whose answer was lost.
    LostClaimIgnored,
    /// After a publisher's panic each event of the call is sent, whatever became of those before it.
    PanicForgetsKeys,
    /// A failing topic pauses the whole route.
    TopicPausesRoute,
    /// An event is tried for ever.
    AttemptsWithoutEnd,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::SettleBeforeAck,
        Self::RetryOvertakesKey,
        Self::OutageBurnsAttempts,
        Self::HoldForgotten,
        Self::UnknownIsDelivered,
        Self::WaveLimitIgnored,
        Self::ShutdownDropsInFlight,
        Self::EndedLeaseSent,
        Self::RewindKeepsClaims,
        Self::UnblockedTooEarly,
        Self::DroppedBatchIgnored,
        Self::LostClaimIgnored,
        Self::PanicForgetsKeys,
        Self::TopicPausesRoute,
        Self::AttemptsWithoutEnd,
    ];
}
