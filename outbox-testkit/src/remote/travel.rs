//! The types of the core as plain values. The core itself has no form of them for a wire, and needs
//! none.
//!
//! A type that gets another field or variant no longer compiles here, so that none stays behind unseen.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use outbox_core::{
    Batch, BatchSource, BatchToken, BoundedCount, ClaimLimit, CleanRequest, Cleaned, DeadFilter,
    DeadGroup, DeadLetter, DeadReason, DeadSummary, Error, ErrorKind, Failing, FailingTopic,
    FailureNote, Headers, Inspection, LaneId, LaneInfo, Migrated, Page, Position, Result, Scope,
    Settled, Settlement, StoredEvent, TopicSet, Unreadable, Verdict, WorkerId,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use time::OffsetDateTime;
use uuid::Uuid;

/// What is sent for a type.
pub(super) type Wire<T> = <T as Travel>::Wire;

/// A type that comes out in the other process as it went in.
///
/// Unpacking panics on what packing never makes: both ends are built from one source.
pub(super) trait Travel: Sized {
    type Wire: Serialize + DeserializeOwned;

    fn pack(self) -> Self::Wire;
    fn unpack(wire: Self::Wire) -> Self;
}

macro_rules! as_it_is {
    ($($type:ty),+) => {$(
        impl Travel for $type {
            type Wire = Self;

            fn pack(self) -> Self {
                self
            }
            fn unpack(wire: Self) -> Self {
                wire
            }
        }
    )+};
}

macro_rules! by_content {
    ($($type:ident($content:ty)),+) => {$(
        impl Travel for $type {
            type Wire = Wire<$content>;

            fn pack(self) -> Self::Wire {
                self.0.pack()
            }
            fn unpack(wire: Self::Wire) -> Self {
                Self(Travel::unpack(wire))
            }
        }
    )+};
}

macro_rules! by_fields {
    ($($type:ident { $($field:ident: $content:ty),+ })+) => {$(
        impl Travel for $type {
            type Wire = ($(Wire<$content>,)+);

            fn pack(self) -> Self::Wire {
                let Self { $($field),+ } = self;
                ($($field.pack(),)+)
            }
            fn unpack(($($field,)+): Self::Wire) -> Self {
                Self { $($field: Travel::unpack($field)),+ }
            }
        }
    )+};
}
pub(super) use by_fields;

macro_rules! by_name {
    ($($type:ident { $($variant:ident),+ })+) => {$(
        impl Travel for $type {
            type Wire = String;

            fn pack(self) -> String {
                match self { $(Self::$variant => stringify!($variant).to_owned()),+ }
            }
            fn unpack(wire: String) -> Self {
                match wire.as_str() {
                    $(stringify!($variant) => Self::$variant,)+
                    _ => panic!("{wire} is no {}", stringify!($type)),
                }
            }
        }
    )+};
}

as_it_is!((), bool, i32, i64, u32, u64, usize, String, Uuid, Duration);
by_content!(
    Position(i64),
    BatchToken(Uuid),
    LaneId(String),
    WorkerId(String)
);
by_name! {
    Scope { Message, Topic, Destination }
    BatchSource { Stream, Parked }
    DeadReason { Rejected, AttemptsExhausted, Crashed, TopicUnavailable, Unreadable, Unrouted }
}
by_fields! {
    Migrated { from: i32, to: i32, also: Option<&'static str> }
    ClaimLimit { events: usize, bytes: usize }
    Batch {
        token: BatchToken, source: BatchSource, events: Vec<StoredEvent>,
        unreadable: Vec<Unreadable>, claimed_at: OffsetDateTime, more: bool
    }
    Unreadable { position: Position, key: Option<String>, error: Error }
    StoredEvent {
        position: Position, id: Uuid, topic: String, key: Option<String>, event_type: String,
        event_version: u32, aggregate_type: Option<String>, aggregate_id: Option<String>,
        content_type: Option<String>, payload: Option<Bytes>, headers: Headers,
        created_at: OffsetDateTime, attempts: u32, crashes: u32, failing_for: Option<Duration>
    }
    FailureNote { kind: Option<ErrorKind>, text: String }
    Settlement { position: Position, verdict: Verdict }
    Settled { applied: u64, lost: u64, unblocked: Vec<String> }
    DeadFilter {
        ids: Vec<Uuid>, topic: Option<String>, key: Option<String>, event_type: Option<String>,
        error_kind: Option<ErrorKind>, dead_for: Option<Duration>
    }
    Page { after: Option<Position>, limit: u32 }
    DeadSummary {
        position: Position, event_id: Uuid, topic: String, key: Option<String>, event_type: String,
        attempts: u32, reason: DeadReason, note: FailureNote, created_at: OffsetDateTime,
        dead_at: OffsetDateTime
    }
    DeadLetter { summary: DeadSummary, event: Result<StoredEvent> }
    DeadGroup { topic: String, event_type: String, error_kind: Option<ErrorKind>, count: u64 }
    BoundedCount { value: u64, at_least: bool }
    LaneInfo { lane: LaneId, owner: Option<String>, in_flight: BoundedCount, lease_left: Duration }
    Inspection {
        pending: BoundedCount, scheduled: BoundedCount, in_flight: BoundedCount,
        held: BoundedCount, dead: BoundedCount, oldest_pending: Duration,
        blocked_keys: BoundedCount, lanes: Vec<LaneInfo>
    }
    FailingTopic {
        topic: String, waiting: BoundedCount, retry_in: Duration, last_failure: FailureNote
    }
    Failing { topics: Vec<FailingTopic>, more: bool }
    CleanRequest { retention: Duration, dedup_retention: Duration, rows_max: u32 }
    Cleaned {
        events: u64, dedup_keys: u64, partitions: u64, more: bool, busy: bool,
        notice: Option<&'static str>
    }
}

impl<T: Travel> Travel for Option<T> {
    type Wire = Option<T::Wire>;

    fn pack(self) -> Self::Wire {
        self.map(T::pack)
    }
    fn unpack(wire: Self::Wire) -> Self {
        wire.map(T::unpack)
    }
}

impl<T: Travel> Travel for Vec<T> {
    type Wire = Vec<T::Wire>;

    fn pack(self) -> Self::Wire {
        self.into_iter().map(T::pack).collect()
    }
    fn unpack(wire: Self::Wire) -> Self {
        wire.into_iter().map(T::unpack).collect()
    }
}

impl<T: Travel> Travel for Result<T> {
    type Wire = Result<T::Wire, Wire<Error>>;

    fn pack(self) -> Self::Wire {
        self.map(T::pack).map_err(Travel::pack)
    }
    fn unpack(wire: Self::Wire) -> Self {
        wire.map(T::unpack).map_err(Travel::unpack)
    }
}

/// Texts of the program, of which there are few: they are kept for ever.
impl Travel for &'static str {
    type Wire = String;

    fn pack(self) -> String {
        self.to_owned()
    }
    fn unpack(wire: String) -> Self {
        wire.leak()
    }
}

impl Travel for Bytes {
    type Wire = String;

    fn pack(self) -> String {
        STANDARD.encode(self)
    }
    fn unpack(wire: String) -> Self {
        STANDARD.decode(wire).expect("bytes in base64").into()
    }
}

impl Travel for Headers {
    type Wire = serde_json::Value;

    fn pack(self) -> Self::Wire {
        self.to_json()
    }
    fn unpack(wire: Self::Wire) -> Self {
        Self::from_json(&wire).expect("the exact form of headers")
    }
}

impl Travel for OffsetDateTime {
    type Wire = i64;

    fn pack(self) -> i64 {
        i64::try_from(self.unix_timestamp_nanos()).expect("a time before 2262")
    }
    fn unpack(nanos: i64) -> Self {
        Self::from_unix_timestamp_nanos(nanos.into()).expect("a time in the calendar")
    }
}

impl Travel for TopicSet {
    type Wire = Vec<String>;

    fn pack(self) -> Self::Wire {
        self.patterns().iter().map(ToString::to_string).collect()
    }
    fn unpack(wire: Self::Wire) -> Self {
        let patterns = wire.iter().map(|text| text.parse().expect("a pattern"));
        Self::new(patterns).expect("a pattern at least")
    }
}

impl Travel for ErrorKind {
    type Wire = String;

    fn pack(self) -> String {
        self.as_str().to_owned()
    }
    fn unpack(wire: String) -> Self {
        Self::parse(&wire).expect("a kind of errors")
    }
}

/// Kind, scope, operation, delay and text stay; the text then has the context in it.
impl Travel for Error {
    type Wire = (
        Wire<ErrorKind>,
        Wire<Scope>,
        Wire<&'static str>,
        Option<Duration>,
        String,
    );

    fn pack(self) -> Self::Wire {
        let (kind, operation) = (self.kind(), self.operation());
        let text = self.to_string();
        let message = text.strip_prefix(&format!("{operation}: {kind}: "));
        (
            kind.pack(),
            self.failure_scope().pack(),
            operation.pack(),
            self.retry_delay(),
            message.expect("the form of errors").to_owned(),
        )
    }
    fn unpack((kind, scope, operation, retry_after, message): Self::Wire) -> Self {
        let operation = Travel::unpack(operation);
        let error = Self::new(Travel::unpack(kind), operation, message);
        let error = error.scope(Travel::unpack(scope));
        match retry_after {
            Some(delay) => error.retry_after(delay),
            None => error,
        }
    }
}

/// A [`Verdict`], sent in its place.
#[derive(Serialize, Deserialize)]
pub(super) enum SentVerdict {
    Done,
    Retry(Duration, Wire<FailureNote>),
    Defer(Duration, Wire<FailureNote>),
    Hold,
    Return,
    Dead(Wire<DeadReason>, Wire<FailureNote>, bool),
}

impl Travel for Verdict {
    type Wire = SentVerdict;

    fn pack(self) -> SentVerdict {
        match self {
            Self::Done => SentVerdict::Done,
            Self::Retry { after, note } => SentVerdict::Retry(after, note.pack()),
            Self::Defer { after, note } => SentVerdict::Defer(after, note.pack()),
            Self::Hold => SentVerdict::Hold,
            Self::Return => SentVerdict::Return,
            Self::Dead {
                reason,
                note,
                hold_key,
            } => SentVerdict::Dead(reason.pack(), note.pack(), hold_key),
        }
    }
    fn unpack(sent: SentVerdict) -> Self {
        match sent {
            SentVerdict::Done => Self::Done,
            SentVerdict::Retry(after, note) => Self::Retry {
                after,
                note: Travel::unpack(note),
            },
            SentVerdict::Defer(after, note) => Self::Defer {
                after,
                note: Travel::unpack(note),
            },
            SentVerdict::Hold => Self::Hold,
            SentVerdict::Return => Self::Return,
            SentVerdict::Dead(reason, note, hold_key) => Self::Dead {
                reason: Travel::unpack(reason),
                note: Travel::unpack(note),
                hold_key,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an error says, and what the engine decides by, is the same on the other side.
    #[test]
    fn an_error_keeps_what_counts() {
        let error = Error::new(ErrorKind::Throttled, "claim", "later\nplease")
            .scope(Scope::Topic)
            .context("code", 5)
            .retry_after(Duration::from_millis(7));
        let text = error.to_string();
        let wire = serde_json::to_string(&error.pack()).unwrap();
        let error = Error::unpack(serde_json::from_str(&wire).unwrap());
        assert_eq!(error.to_string(), text);
        assert_eq!(
            (error.kind(), error.failure_scope(), error.retry_delay()),
            (
                ErrorKind::Throttled,
                Scope::Topic,
                Some(Duration::from_millis(7))
            )
        );
    }
}
