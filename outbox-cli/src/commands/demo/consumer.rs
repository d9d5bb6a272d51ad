//! The consumer of the demo, and the faults that it has on purpose.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use async_trait::async_trait;
use outbox_core::{Error, ErrorKind, Outcome, Publisher, Scope, StoredEvent};
use uuid::Uuid;

use super::{
    check::Handled,
    shop::Order,
    teller::{Mark, Teller},
};
use crate::output::duration;

/// Receives events, tells of each, and drops copies. In place of a broker: it answers as one does.
pub(super) struct Consumer {
    teller: Teller,
    inbox: Mutex<Inbox>,
}

/// What it knows.
#[derive(Default)]
struct Inbox {
    /// The mark that makes copies harmless: the ids of the events that were handled.
    known: BTreeSet<Uuid>,
    handled: Vec<Handled>,
    dropped: usize,
    /// The order whose first answer gets lost.
    answer_lost: Option<i64>,
    repaired: bool,
    refused_at: Option<Instant>,
}

impl Consumer {
    pub(super) fn new(teller: Teller) -> Self {
        Self {
            teller,
            inbox: Mutex::default(),
        }
    }

    /// The first answer about this order will not arrive.
    pub(super) fn lose_answer(&self, order: i64) {
        self.inbox().answer_lost = Some(order);
    }

    /// From now on it can handle free orders.
    pub(super) fn repair(&self) {
        self.inbox().repaired = true;
    }

    /// What it handled, in order, and how many copies it dropped.
    pub(super) fn received(&self) -> (Vec<Handled>, usize) {
        let inbox = self.inbox();
        (inbox.handled.clone(), inbox.dropped)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, event: &StoredEvent) -> Outcome {
        let payload = event.payload.as_deref().unwrap_or_default();
        let Ok(order) = serde_json::from_slice::<Order<'_>>(payload) else {
            return Outcome::Rejected(refusal("the payload is no order"));
        };
        let told = format!("order {:>2} of {}", order.id, order.customer);
        let inbox = &mut *self.inbox();
        if inbox.known.contains(&event.id) {
            inbox.dropped += 1;
            let text = format!("{told}: a copy, its event id is known; nothing is done twice");
            self.teller.fact(Mark::Odd, "dropped", &text);
            return Outcome::delivered();
        }
        if order.total < 0 {
            let text = format!("{told}: a refund, which the consumer will never take");
            self.teller.fact(Mark::Bad, "rejected", &text);
            return Outcome::Rejected(refusal("refunds are not supported"));
        }
        if order.total == 0 && !inbox.repaired {
            let since = inbox.refused_at.replace(Instant::now());
            let after = since.map_or_else(String::new, |since| {
                format!(", {} later", duration(since.elapsed()))
            });
            let text = format!("{told}: attempt {}{after}", event.attempts);
            self.teller.fact(Mark::Bad, "failed", &text);
            return Outcome::Failed(refusal("division by zero: the total is 0"));
        }
        inbox.known.insert(event.id);
        inbox.handled.push(Handled {
            order: order.id,
            customer: order.customer.to_owned(),
        });
        self.teller.fact(Mark::Good, "received", &told);
        let is_lost = inbox.answer_lost.take_if(|lost| *lost == order.id);
        if is_lost.is_some() {
            self.teller
                .fact(Mark::Odd, "(lost)", "the answer to the relay");
            let lost = Error::new(ErrorKind::Timeout, "publish", "no answer came");
            return Outcome::Unknown(lost.scope(Scope::Message));
        }
        Outcome::delivered()
    }
}

fn refusal(why: &'static str) -> Error {
    Error::new(ErrorKind::Refused, "handle order", why)
}

#[async_trait]
impl Publisher for Consumer {
    fn name(&self) -> &'static str {
        "demo"
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        events.iter().map(|event| self.receive(event)).collect()
    }
}
