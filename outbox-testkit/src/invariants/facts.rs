//! What a relay did, call by call.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use outbox_core::{BatchToken, ClaimLimit, Scope, Verdict};
use uuid::Uuid;

/// Since the run began, on a clock that never steps.
pub type Moment = Duration;

/// The configured bounds.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Attempts until an event is dead.
    pub attempts_max: u32,
    /// Crashes until an event is dead.
    pub crashes_max: u32,
    /// The shortest delay between two attempts.
    pub retry_base: Duration,
    /// The longest delay between two attempts.
    pub retry_cap: Duration,
    /// Events of a batch.
    pub batch_events_max: usize,
    /// Bytes of a batch.
    pub batch_bytes_max: usize,
    /// The lease of a claim and of a lane.
    pub lease: Duration,
    /// The store's clock was set while relays ran: what they know of leases may be wrong.
    pub clock_steps: bool,
    /// How long a stop waits for what is in flight.
    pub grace: Duration,
    /// Events that kill their process when they are sent: only they may die of crashes.
    pub killers: BTreeSet<Uuid>,
    /// Keys of rows that are no events: they hold what follows.
    pub unreadable_keys: BTreeSet<String>,
    /// I7: how long an event may take from its commit to its first sighting when neither its key nor
    /// its topic ever failed. `None` where whole destinations, processes or the store failed.
    pub innocent_wait_max: Option<Duration>,
}

/// What a publisher answered for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// Acknowledged.
    Delivered,
    /// Never will be taken.
    Rejected(Scope),
    /// Did not land.
    Failed(Scope),
    /// May have landed.
    Unknown(Scope),
}

/// An event as a claim handed it out.
#[derive(Debug, Clone)]
pub struct ClaimedEvent {
    /// Its id.
    pub id: Uuid,
    /// Its attempts, this one included.
    pub attempts: u32,
    /// Its crashes.
    pub crashes: u32,
    /// Its size.
    pub bytes: usize,
}

/// One thing that happened. `at` is the store's own clock, which may step.
#[derive(Debug, Clone)]
pub enum Fact {
    /// Writers committed these.
    Committed(Vec<Uuid>),
    /// A consumer saw this one.
    Landed(Uuid),
    /// A process got a lane.
    Acquired {
        /// Who.
        process: u32,
        /// Which.
        lane: Arc<str>,
        /// When.
        at: Duration,
    },
    /// An owner's call that prolonged the lane's lease, if it is still the owner.
    Kept {
        /// Who.
        process: u32,
        /// Which.
        lane: Arc<str>,
        /// When.
        at: Duration,
    },
    /// A claim that was carried out.
    Claimed {
        /// By whom.
        process: u32,
        /// Of which lane.
        lane: Arc<str>,
        /// The fence.
        token: BatchToken,
        /// From the stream, not from what is parked.
        stream: bool,
        /// When.
        at: Duration,
        /// What was asked for.
        limit: ClaimLimit,
        /// What it took.
        events: Vec<ClaimedEvent>,
    },
    /// Leases that were prolonged.
    Renewed {
        /// By whom.
        process: u32,
        /// Of which lane.
        lane: Arc<str>,
        /// Those that were not lost.
        tokens: Vec<BatchToken>,
        /// When.
        at: Duration,
    },
    /// The publisher was called.
    Called {
        /// By whom.
        process: u32,
        /// The call's number.
        call: u64,
        /// When.
        at: Duration,
        /// At most one event of a key may be in flight.
        waves: bool,
        /// The events and their keys.
        events: Vec<(Uuid, Option<String>)>,
    },
    /// The publisher answered.
    Answered {
        /// The call's number.
        call: u64,
        /// An answer per event.
        answers: Vec<(Uuid, Answer)>,
    },
    /// The relay gave a call up before its answer.
    Cancelled {
        /// By whom.
        process: u32,
        /// The call's number.
        call: u64,
    },
    /// The publisher refused an event before it was sent.
    Refused(Uuid),
    /// A settle that was carried out, for the first time.
    Settled {
        /// By whom.
        process: u32,
        /// Of which lane.
        lane: Arc<str>,
        /// The fence.
        token: BatchToken,
        /// What was to be written about events.
        verdicts: Vec<(Uuid, Verdict)>,
        /// For how many it was.
        applied: u64,
    },
    /// A process was asked to give a lane to another one.
    Surrendered {
        /// Who.
        process: u32,
        /// Which.
        lane: Arc<str>,
    },
    /// A lane was given back.
    Released {
        /// By whom.
        process: u32,
        /// Which.
        lane: Arc<str>,
    },
    /// An operator's call on a dead letter.
    Requeued(Uuid),
    /// A process was killed.
    Died {
        /// Which.
        process: u32,
        /// Where it was.
        point: &'static str,
    },
    /// A process was told to stop.
    Stopping {
        /// Which.
        process: u32,
    },
    /// A fault that is no fact about a relay, for those who read a trace.
    Fault(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, scope) = match self {
            Self::Delivered => return f.write_str("delivered"),
            Self::Rejected(scope) => ("rejected", scope),
            Self::Failed(scope) => ("failed", scope),
            Self::Unknown(scope) => ("unknown", scope),
        };
        let scope = match scope {
            Scope::Message => "message",
            Scope::Topic => "topic",
            Scope::Destination => "destination",
        };
        write!(f, "{name}/{scope}")
    }
}
