//! The claim of a lane: when to make one, how large, and what came of it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{Instrument, debug_span};

use super::{LaneTask, Leased, Phase};
use crate::{
    breaker::Gate,
    error::{ErrorKind, Result},
    relay::{mutation::Mutation, settle::store_pause},
    store::{Batch, ClaimLimit},
};

impl LaneTask {
    pub(super) fn start_claim(&mut self, now: Instant) -> Instant {
        let far = now + self.context.config.acquire_interval;
        let rewinding = self.context.ordered
            && (self.settling_rewinds && self.settling.is_some()
                || self
                    .unsettled
                    .as_ref()
                    .is_some_and(|(work, _)| work.rewinds));
        let nothing_gained =
            self.publishing.is_some() && (!self.pace.is_behind() || self.holds_probe);
        if self.phase != Phase::Working
            || self.claiming.is_some()
            || self.ready.is_some()
            || self.checking.is_some()
            || rewinding
            || nothing_gained
        {
            return far;
        }
        if now < self.claim_not_before {
            return self.claim_not_before;
        }
        let events = match self.context.gates.destination(now) {
            Gate::Closed => self.pace.batch_events(),
            Gate::Probe => {
                self.holds_probe = true;
                1
            }
            Gate::Open(until) => return until,
        };
        let limit = ClaimLimit {
            events,
            bytes: self.context.config.batch_bytes_max,
        };
        let (store, lane, stop) = (
            Arc::clone(&self.context.store),
            Arc::clone(&self.lane),
            self.stop.clone(),
        );
        let wait = if self.holds_probe {
            Duration::ZERO
        } else {
            self.pace.wait()
        };
        let span = debug_span!("claim", route = self.context.name, lane = %lane.id());
        self.claiming = Some(Box::pin(async move {
            if !wait.is_zero() {
                tokio::select! { biased; () = stop.cancelled() => return None, () = store.wait(wait) => {} }
            }
            let asked_at = Instant::now();
            Some((asked_at, lane.claim(limit).instrument(span).await))
        }));
        far
    }

    pub(super) fn claimed(&mut self, claimed_at: Instant, batch: Result<Batch>) {
        let number = self.next_claim;
        self.next_claim += 1;
        let now = Instant::now();
        match batch {
            Ok(batch) => {
                self.claim_failures = 0;
                self.context.store_answered();
                let events = batch.events.len() + batch.unreadable.len();
                if !self.holds_probe {
                    self.pace.claimed(events, batch.more);
                }
                if batch.is_empty() {
                    if self.holds_probe {
                        self.start_check();
                    }
                    return;
                }
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a batch is far below 2^52 events"
                )]
                self.context.telemetry.batch_events.record(events as f64);
                let lease_ends = claimed_at + self.lane.lease();
                self.ready = Some(Leased {
                    batch,
                    claimed_at,
                    lease_ends,
                    number,
                });
            }
            Err(error) => {
                self.return_probe(now);
                self.lose_if(error.kind() == ErrorKind::LeaseLost);
                self.context.store_failed("claim", &error);
                self.claim_failures = self.claim_failures.saturating_add(1);
                self.claim_not_before = now + store_pause(&self.context, self.claim_failures);
                if self.context.ordered && !self.context.mutated(Mutation::LostClaimIgnored) {
                    self.retire();
                }
            }
        }
    }
}
