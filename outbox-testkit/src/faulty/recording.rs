//! A broker in memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use outbox_core::{Capabilities, OrderClass, Outcome, Publisher, Receipt, StoredEvent};
use tokio::time::Instant;

/// One message that arrived.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The event as it was handed over.
    pub event: StoredEvent,
    /// When, on tokio's clock.
    pub at: Instant,
    /// In which call of `publish`, from 0.
    pub call: u64,
}

/// Takes everything at once and keeps it in the order of arrival.
#[derive(Debug)]
pub struct RecordingPublisher {
    capabilities: Capabilities,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deliveries: Vec<Delivery>,
    calls: u64,
}

impl Default for RecordingPublisher {
    fn default() -> Self {
        Self::new(OrderClass::InFlight)
    }
}

impl RecordingPublisher {
    /// A broker that claims this order class.
    pub fn new(order: OrderClass) -> Self {
        Self {
            capabilities: Capabilities {
                order,
                dedup_by_id: false,
                null_payload: true,
                message_bytes_max: None,
            },
            state: Mutex::default(),
        }
    }

    /// Everything so far, copies included, in the order of arrival.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.lock().deliveries.clone()
    }

    /// The events of [`deliveries`](Self::deliveries).
    pub fn events(&self) -> Vec<StoredEvent> {
        self.lock()
            .deliveries
            .iter()
            .map(|delivery| delivery.event.clone())
            .collect()
    }

    /// How many messages arrived, copies included.
    pub fn len(&self) -> usize {
        self.lock().deliveries.len()
    }

    /// Whether nothing arrived.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls of `publish` there were.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Publisher for RecordingPublisher {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let mut state = self.lock();
        let call = state.calls;
        state.calls += 1;
        let at = Instant::now();
        let mut outcomes = Vec::with_capacity(events.len());
        for event in events {
            outcomes.push(Outcome::Delivered(Receipt {
                position: Some(state.deliveries.len().to_string()),
                duplicate: false,
            }));
            state.deliveries.push(Delivery {
                event: event.clone(),
                at,
                call,
            });
        }
        outcomes
    }
}
