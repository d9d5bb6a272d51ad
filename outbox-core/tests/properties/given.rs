//! What the properties are tried on.

use std::time::Duration;

use outbox_core::{BreakerPolicy, Error, ErrorKind, OnDead, Outcome, RetryPolicy, Scope};
use proptest::{prelude::*, sample::select};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Any duration; those at the bounds of settings often, and with nanoseconds, which no database and
/// no broker has.
pub(crate) fn durations() -> impl Strategy<Value = Duration> {
    let bounds = [
        Duration::ZERO,
        Duration::from_nanos(999_999),
        MS,
        MS + Duration::from_nanos(1),
        YEAR,
        YEAR + Duration::from_nanos(1),
        Duration::MAX,
    ];
    prop_oneof![
        2 => select(bounds.to_vec()),
        3 => within(MS, YEAR),
        1 => (any::<u64>(), 0u32..1_000_000_000).prop_map(|(s, ns)| Duration::new(s, ns)),
    ]
}

/// A duration of any size in this range: the small ones as often as the large ones.
pub(crate) fn within(least: Duration, most: Duration) -> impl Strategy<Value = Duration> {
    (0.0..1.0f64, 0.0..1.0f64).prop_map(move |(share, size)| {
        let room = most.saturating_sub(least).as_secs_f64();
        let part = Duration::from_secs_f64(room * share * 10f64.powf(-10.0 * size));
        (least + part).min(most)
    })
}

/// A breaker that its own check accepts.
pub(crate) fn breaker_policies() -> impl Strategy<Value = BreakerPolicy> {
    (within(MS, YEAR), within(MS, YEAR), within(MS, YEAR)).prop_map(|(a, b, probe_timeout)| {
        BreakerPolicy {
            base: a.min(b),
            cap: a.max(b),
            probe_timeout,
        }
    })
}

/// A retry policy that its own check accepts, with few attempts, so that short histories end.
pub(crate) fn retry_policies() -> impl Strategy<Value = RetryPolicy> {
    let second = Duration::from_secs(1);
    (
        (within(MS, 100 * second), within(MS, 100 * second)),
        (1u32..4, 1u32..6, 1u32..4),
        within(Duration::ZERO, 100 * second),
        select(vec![OnDead::HoldKey, OnDead::Skip]),
    )
        .prop_map(
            |((a, b), (factor, attempts_max, crashes_max), topic_patience, on_dead)| RetryPolicy {
                base: a.min(b),
                factor,
                cap: a.max(b),
                attempts_max,
                crashes_max,
                topic_patience,
                on_dead,
            },
        )
}

/// What a publisher may answer: every outcome × kind × scope, with and without a wish of the server.
#[derive(Debug, Clone)]
pub(crate) enum Answered {
    Delivered,
    Not(Word, ErrorKind, Scope, Option<Duration>),
}

/// The publisher's word for what is no success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Rejected,
    Failed,
    Unknown,
}

impl Answered {
    pub(crate) fn outcome(&self) -> Outcome {
        let Self::Not(word, kind, scope, wish) = self else {
            return Outcome::delivered();
        };
        let mut error = Error::new(*kind, "publish", "as the case says").scope(*scope);
        if let Some(delay) = wish {
            error = error.retry_after(*delay);
        }
        match word {
            Word::Rejected => Outcome::Rejected(error),
            Word::Failed => Outcome::Failed(error),
            Word::Unknown => Outcome::Unknown(error),
        }
    }
}

pub(crate) fn answers() -> impl Strategy<Value = Answered> {
    let words = select(vec![Word::Rejected, Word::Failed, Word::Unknown]);
    let scopes = select(vec![Scope::Message, Scope::Topic, Scope::Destination]);
    let wishes = proptest::option::of(durations());
    prop_oneof![
        1 => Just(Answered::Delivered),
        9 => (words, select(ErrorKind::ALL), scopes, wishes)
            .prop_map(|(word, kind, scope, wish)| Answered::Not(word, kind, scope, wish)),
    ]
}
