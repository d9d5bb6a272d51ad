//! What a relay did, call by call.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use outbox_core::{BatchToken, ClaimLimit, DeadReason, Scope, Verdict};
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
    /// The shortest pause of a topic, where the server does not say when to come again.
    pub pause_base: Duration,
    /// The longest pause of a topic.
    pub pause_cap: Duration,
    /// How long events wait for a topic that fails.
    pub topic_patience: Duration,
    /// Later events of a key go on without a dead one.
    pub skips: bool,
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
    /// How long ago it first failed.
    pub failing_for: Option<Duration>,
}

/// Where a store keeps an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the stream, to be claimed from there.
    Stream,
    /// Nowhere any more: it was delivered.
    Delivered,
    /// Off the stream until the store's clock shows this.
    Waiting(Duration),
    /// Off the stream behind an earlier event of its key.
    Held,
    /// Dead, and whether its key waits for it.
    Dead(DeadReason, bool),
    /// Nobody knows where.
    Nowhere,
}

/// How an event stands in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Where it is.
    pub place: Place,
    /// Its attempts, where it is off the stream.
    pub attempts: u32,
}

/// A verdict, and what the store made of it.
#[derive(Debug, Clone)]
pub struct Written {
    /// About which event.
    pub id: Uuid,
    /// What was to be written.
    pub verdict: Verdict,
    /// How it stands now.
    pub stands: Standing,
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
        /// Rows beside them that are no events, under ids that stand for them, and their keys.
        unreadable: Vec<(Uuid, Option<String>)>,
    },
    /// Keys with parked events, as the new owner of a lane was told.
    Blocked {
        /// Of which lane.
        lane: Arc<str>,
        /// The keys.
        keys: Vec<String>,
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
        /// How long the server wishes to be left alone, where it said so.
        wishes: Vec<(Uuid, Duration)>,
    },
    /// The call had no answer in time: the whole destination seems to fail.
    Overdue {
        /// The call's number.
        call: u64,
    },
    /// The publisher's own check.
    Checked {
        /// Who asked.
        process: u32,
        /// Nothing was wrong.
        ok: bool,
    },
    /// A call of the store failed or was slow, or the process stood still: what it knows of its leases
    /// may be wrong.
    Hampered {
        /// Which process.
        process: u32,
    },
    /// A call broke the contract of the store or of the publisher.
    Misused {
        /// Who called.
        process: u32,
        /// How.
        what: String,
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
        /// What was written about events.
        verdicts: Vec<Written>,
        /// About how many, as the store says.
        applied: u64,
        /// When.
        at: Duration,
        /// Keys of which nothing is parked any more, as the store says.
        unblocked: Vec<String>,
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
    /// An operator put a dead letter back.
    Requeued(Uuid),
    /// An operator removed a dead letter.
    Discarded(Uuid),
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

impl Answer {
    /// How wide the failure is; `None` when it is none.
    pub fn scope(self) -> Option<Scope> {
        match self {
            Self::Delivered => None,
            Self::Rejected(scope) | Self::Failed(scope) | Self::Unknown(scope) => Some(scope),
        }
    }
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
