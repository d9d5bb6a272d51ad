//! What a publisher's author writes to run the suite.

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Headers, Publisher, StoredEvent};
use time::OffsetDateTime;
use uuid::Uuid;

/// What the harness and the broker can do. Each gate is asserted: what is claimed must be there,
/// and what is not claimed must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent abilities, not a state"
)]
pub struct PublisherGates {
    /// [`PublisherHarness::broker`] gives an address that a proxy can stand before.
    pub proxy: bool,
    /// [`PublisherHarness::refusing_topic`] gives a topic whose events the server refuses.
    pub refusing_topic: bool,
    /// [`PublisherHarness::limited`] gives a publisher with a size limit that a test can reach.
    pub size_limit: bool,
    /// Headers arrive in order, with duplicates and any bytes; else as text, the first of a name.
    pub exact_headers: bool,
}

/// A message as a consumer reads it from the real broker, mapped back from the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The event id.
    pub id: Uuid,
    /// The key; `None` is not the same as empty.
    pub key: Option<String>,
    /// The payload; `None` is not the same as empty.
    pub payload: Option<Bytes>,
    /// The event type.
    pub event_type: String,
    /// The version of the type.
    pub event_version: u32,
    /// The aggregate type.
    pub aggregate_type: Option<String>,
    /// The aggregate id.
    pub aggregate_id: Option<String>,
    /// The content type.
    pub content_type: Option<String>,
    /// User headers.
    pub headers: Headers,
    /// The creation time, as exactly as the wire keeps it (a second at least).
    pub created_at: OffsetDateTime,
}

/// A publisher whose size limit a test can reach.
pub struct Limited {
    /// The publisher; its capabilities name the limit.
    pub publisher: Box<dyn Publisher>,
    /// How the publisher counts an event against the limit.
    pub message_len: fn(&StoredEvent) -> usize,
}

/// Makes publishers for the suite, on a real broker. One value is made for each test.
#[async_trait]
pub trait PublisherHarness: Send + Sync {
    /// What it can do.
    fn gates(&self) -> PublisherGates;

    /// A publisher with this deadline for a call, connected to the broker itself, or, when an
    /// address is given, to that instead.
    async fn publisher(&self, via: Option<SocketAddr>, deadline: Duration) -> Box<dyn Publisher>;

    /// Where the broker listens; `None` where there is no such thing.
    fn broker(&self) -> Option<SocketAddr>;

    /// A topic that works and that nothing was ever published to.
    async fn topic(&self) -> String;

    /// Everything that is in the topic now, from its start, in its order, for no more than a few
    /// seconds. Empty for a topic that does not exist.
    async fn consume(&self, topic: &str) -> Vec<Received>;

    /// A topic whose events the server refuses after they were sent.
    async fn refusing_topic(&self) -> Option<String> {
        None
    }

    /// A publisher with a limit below 64 MiB.
    async fn limited(&self) -> Option<Limited> {
        None
    }

    /// Whether the publisher sends again by itself what a cut took, within the call, and the broker
    /// drops the copies.
    fn repairs_cuts(&self) -> bool {
        false
    }

    /// Removes what was made. Called once, also after a failed test.
    async fn destroy(&self) {}
}
