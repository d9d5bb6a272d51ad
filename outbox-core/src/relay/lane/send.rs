//! The publish of a lane: from a claimed batch to the verdicts that await their settle.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{Instrument, Span, debug_span, field::Empty};

use super::{Flight, LaneTask, Leased};
use crate::{
    relay::{
        conclude::conclude,
        mutation::Mutation,
        plan::{Decision, Plan, plan, unreadable_settlements},
        publish::{Published, publish},
        route::RouteContext,
        settle::Work,
    },
    store::{Batch, LaneId, Settlement, Verdict},
    stored_event::StoredEvent,
};

impl LaneTask {
    pub(super) fn start_publish(&mut self, leased: Leased, now: Instant) {
        let Leased {
            batch,
            claimed_at,
            lease_ends,
            number,
        } = leased;
        let paused = !self.holds_probe && self.context.gates.is_open();
        let mutated = |mutation| self.context.mutated(mutation);
        let void = number < self.first_valid_claim && !mutated(Mutation::RewindKeepsClaims);
        let ended = now >= lease_ends && !mutated(Mutation::EndedLeaseSent);
        if paused || void || ended {
            // Woken too late, voided by a rewind, or the destination failed meanwhile: not sent.
            self.return_probe(now);
            self.rewind();
            self.unsettled = Some((Work::give_back(&batch), lease_ends.max(now)));
            return;
        }
        let unreadable = unreadable_settlements(&self.context, &batch, &mut self.blocked);
        let plan = plan(&self.context, &batch, &mut self.blocked, now);
        let parked = plan.parked_keys(&batch);
        self.flight = Some(Flight {
            token: batch.token,
            claimed_at,
            lease_ends,
            unreadable,
            parked,
        });
        let span = span_of(&self.context, self.lane.id(), &batch, &plan);
        let early = self.context.mutated(Mutation::SettleBeforeAck).then(|| {
            let done = |event: &StoredEvent| Settlement {
                position: event.position,
                verdict: Verdict::Done,
            };
            let settlements: Vec<_> = batch.events.iter().map(done).collect();
            (Arc::clone(&self.lane), batch.token, settlements)
        });
        let context = Arc::clone(&self.context);
        let publish = async move {
            if let Some((lane, token, settlements)) = early {
                let _ = lane.settle(token, &settlements).await;
            }
            publish(context, batch, plan).await
        };
        self.publishing = Some(Box::pin(publish.instrument(span)));
    }

    pub(super) fn published(&mut self, published: Published) {
        self.publishing = None;
        let Some(flight) = self.flight.take() else {
            return;
        };
        let sent_any = published.outcomes.iter().any(Option::is_some);
        if sent_any {
            self.holds_probe = false;
        } else {
            self.return_probe(Instant::now());
        }
        let work = conclude(
            &self.context,
            published,
            flight.claimed_at,
            flight.unreadable,
            &mut self.blocked,
        );
        if work.rewinds {
            self.rewind();
        }
        self.unsettled = Some((work, flight.lease_ends));
    }

    /// Whatever is claimed already stands behind the point that the cursor goes back to.
    pub(super) fn rewind(&mut self) {
        if !self.context.ordered {
            return;
        }
        self.first_valid_claim = self.next_claim + u64::from(self.claiming.is_some());
    }
}

/// The span of a batch on its way to the broker, with the names of OpenTelemetry's conventions for
/// messaging. Its kind is client: the cause of a message is where its event was made, and that is a
/// link. It begins a trace of its own, wherever the relay was started.
fn span_of(context: &RouteContext, lane: &LaneId, batch: &Batch, plan: &Plan) -> Span {
    let sent = || {
        let decided = batch.events.iter().zip(&plan.decisions);
        decided.filter_map(|(event, decision)| {
            matches!(decision, Decision::Send { .. }).then_some(event)
        })
    };
    let topic = || {
        let topic = sent().next()?.topic.as_str();
        sent().all(|event| event.topic == topic).then_some(topic)
    };
    let span = debug_span!(
        parent: None,
        "publish",
        route = context.name,
        lane = %lane,
        otel.kind = "client",
        otel.status_code = Empty,
        error.type = Empty,
        messaging.system = context.publisher.name(),
        messaging.operation.name = "publish",
        messaging.operation.type = "send",
        messaging.destination.name = topic(),
        messaging.batch.message_count = i64::try_from(sent().count()).unwrap_or(i64::MAX),
    );
    #[cfg(feature = "otel")]
    crate::trace::link(&span, sent());
    span
}
