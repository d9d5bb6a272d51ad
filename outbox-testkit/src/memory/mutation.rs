//! Deliberate faults of the store. The simulation switches one on to prove that its checker notices.

/// A fault that a store is made with by [`MemoryOptions::mutation`](super::MemoryOptions::mutation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// Whoever once had a lane may go on with it.
    FenceIgnored,
    /// A lane is given away although its lease has not ended.
    LeaseIgnored,
    /// A claim counts two attempts.
    AttemptsCountedTwice,
    /// A batch is dropped, and the one behind it stays.
    DroppedBatchKeepsNext,
    /// A lane's death counts as a crash of what nobody had in flight.
    CrashWithoutFlight,
    /// Events that were in flight at a crash are handed out together again and again.
    SuspectsTogether,
    /// An event that was put off passes earlier ones of its key that are in the stream.
    ScheduledPassesStream,
    /// An event that was not put off waits until the clock shows when it was written.
    ClockPutsOff,
    /// A requeued event no longer holds those behind it.
    RequeueBehindFollowers,
    /// A transaction that is rolled back is committed.
    RollbackCommits,
    /// A parked event changes.
    ParkedEventChanges,
    /// The last event of a batch is settled with those before it, whatever its verdict.
    LastVerdictForgotten,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::FenceIgnored,
        Self::LeaseIgnored,
        Self::AttemptsCountedTwice,
        Self::DroppedBatchKeepsNext,
        Self::CrashWithoutFlight,
        Self::SuspectsTogether,
        Self::ScheduledPassesStream,
        Self::ClockPutsOff,
        Self::RequeueBehindFollowers,
        Self::RollbackCommits,
        Self::ParkedEventChanges,
        Self::LastVerdictForgotten,
    ];
}
