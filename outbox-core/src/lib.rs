#![doc = include_str!("../docs.md")]

mod breaker;
mod check;
mod dead;
mod delivery;
mod directive;
mod done_mode;
mod encoding;
mod enqueue;
mod error;
mod event;
mod headers;
mod inspect;
mod limits;
pub mod metric;
mod outcome;
mod publisher;
mod relay;
mod retention;
mod retry;
mod schema;
pub mod setting;
mod store;
mod stored_event;
mod topic;
pub mod trace;

pub use breaker::{Breaker, BreakerPolicy, Gate};
pub use check::{STORE_CHECK_TIMEOUT, check_within};
pub use dead::{DeadFilter, DeadGroup, DeadLetter, DeadLetters, DeadSummary, Page};
pub use delivery::{Answer, Attempt, DeliveryState, Step, step};
pub use directive::{Directive, classify, remedy};
pub use done_mode::DoneMode;
pub use encoding::{Attribute, Binding, Encoding};
pub use enqueue::{Enqueue, Enqueued, demand_transaction};
pub use error::{Error, ErrorKind, Result, Scope};
pub use event::{Event, EventBuilder};
pub use headers::Headers;
pub use inspect::{BoundedCount, Failing, FailingTopic, Inspect, Inspection, LaneInfo};
pub use limits::{InvalidEvent, Limits};
pub use outcome::{Outcome, Receipt};
pub use publisher::{Capabilities, OrderClass, Publisher};
#[doc(hidden)]
pub use relay::Mutation;
pub use relay::{Health, HealthReport, Relay, RelayBuilder, RelayConfig, Route, RouteHealth};
pub use retention::{CleanRequest, Cleaned, Retention};
pub use retry::{OnDead, RetryPolicy};
pub use schema::{Migration, check_schema};
pub use store::{
    AcquireRequest, Acquired, Batch, BatchSource, BatchToken, ClaimLimit, DeadReason, FailureNote,
    Lane, LaneId, Migrated, OutboxStore, Position, Settled, Settlement, Store, Unreadable, Verdict,
    WorkerId,
};
pub use stored_event::StoredEvent;
pub use topic::{TopicPattern, TopicSet};
