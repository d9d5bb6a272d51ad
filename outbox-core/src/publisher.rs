//! The contract between the relay engine and a broker.

use std::time::Duration;

use async_trait::async_trait;

use crate::{error::Result, outcome::Outcome, stored_event::StoredEvent};

/// What is true of a publisher's order when something is refused after it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OrderClass {
    /// A batch may hold many events of one key: their order is kept through retries, cuts and
    /// outages, except when the server refuses a single record after it was sent. What is refused
    /// before that must be found by [`Publisher::validate`].
    InFlight,
    /// Order is kept only with one event per key in flight: the engine sends waves.
    #[default]
    None,
}

/// What a publisher and its broker can do. The default is what is safe for any broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Order in flight.
    pub order: OrderClass,
    /// The broker itself drops copies by the event id, at least for a while.
    pub dedup_by_id: bool,
    /// A null payload stays apart from an empty one on the wire by itself (else by a mark).
    pub null_payload: bool,
    /// The largest message in bytes, as the publisher counts it, where that is known.
    pub message_bytes_max: Option<usize>,
}

/// One broker.
///
/// Only [`publish`](Self::publish) must be written; everything else has a safe default.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// The publisher's name, for logs and metric labels.
    fn name(&self) -> &'static str {
        "custom"
    }

    /// What it can do. Constant for the life of the publisher.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Whether this event could be sent at all, as far as that shows without the server: its size,
    /// its names, its values. Must not block; asked for each event before each attempt.
    ///
    /// Effect: an error is a dead letter at once, in message scope whatever its own says. Order: in
    /// an ordered store what follows of its key is not sent, while a refusal by
    /// [`publish`](Self::publish) comes too late for what stands behind it in the batch. Without
    /// this method nothing is lost or doubled; `publish` refuses such an event too, for those who
    /// call it directly.
    fn validate(&self, event: &StoredEvent) -> Result<()> {
        let _ = event;
        Ok(())
    }

    /// Makes one attempt for each event and tells what became of it: as many outcomes as events, in
    /// their order.
    ///
    /// Effect: `Delivered` only after the broker's durable acknowledgement (I3), with the event's
    /// bytes, id and headers unchanged (I4, I10). Duplicates: may be made by `Unknown`, never by
    /// `Failed` or `Rejected`. Order: as [`Capabilities::order`] says. Retries: none; connections
    /// are rebuilt by the publisher itself, at the next call at the latest. Deadline: always
    /// returns within the publisher's own (default 30 s), the unanswered events as `Unknown`.
    /// Errors: in the outcomes, with the scope that tells one event's fault from the topic's and
    /// the destination's; sizes and names are checked before the wire, and a bad event must not
    /// take its neighbours along. Cancellation: dropping the call leaves each event in doubt; the
    /// publisher stays usable.
    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome>;

    /// Whether it can work: reachable, signed in, permitted. Sends no message. Asked at the start, and
    /// as the probe of a paused destination for which no event waits.
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Ends connections; events in flight get up to `grace` for their answer. No publish follows.
    async fn close(&self, grace: Duration) {
        let _ = grace;
    }
}

/// The trait can be used as `dyn`.
const _: Option<&dyn Publisher> = None;
