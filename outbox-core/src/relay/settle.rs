//! Writes the verdicts of a batch, again and again until the lease ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::route::RouteContext;
use crate::{
    error::{Error, ErrorKind},
    retry::backoff,
    store::{BatchToken, Lane, Settled, Settlement, Verdict},
};

/// A batch that is ready to be settled.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) token: BatchToken,
    pub(super) settlements: Vec<Settlement>,
    /// Delivered events by topic, counted once they are written.
    pub(super) done: BTreeMap<String, u64>,
    /// Keys that this batch parks something of.
    pub(super) parked: BTreeSet<String>,
    /// The lane's cursor goes back: whatever was claimed behind this batch is void.
    pub(super) rewinds: bool,
}

impl Work {
    /// Gives back a batch of which nothing was sent.
    pub(super) fn give_back(batch: &crate::store::Batch) -> Self {
        let positions = batch.events.iter().map(|event| event.position);
        let settlements = positions
            .chain(batch.unreadable.iter().map(|row| row.position))
            .map(|position| Settlement {
                position,
                verdict: Verdict::Return,
            })
            .collect();
        Self {
            token: batch.token,
            settlements,
            done: BTreeMap::new(),
            parked: BTreeSet::new(),
            rewinds: true,
        }
    }
}

/// How a settle ended.
pub(super) enum SettleEnd {
    Written(Settled),
    /// The lane belongs to another worker.
    LaneLost,
    /// The lease ended before a try succeeded: the batch will be seen again (I4).
    Dropped,
}

/// The pause after a failed call of the store: 100 ms doubling up to the setting, with full jitter.
pub(super) fn store_pause(context: &RouteContext, failures: u32) -> Duration {
    let base = Duration::from_millis(100);
    backoff(
        base,
        2,
        context.config.store_backoff_max,
        failures,
        context.jitter.unit(),
    )
}

pub(super) async fn settle(
    context: Arc<RouteContext>,
    lane: Arc<dyn Lane>,
    work: Work,
    lease_ends: Instant,
) -> (SettleEnd, Work) {
    let mut failures = 0;
    loop {
        let error: Error = match lane.settle(work.token, &work.settlements).await {
            Ok(settled) => {
                context.store_answered();
                return (SettleEnd::Written(settled), work);
            }
            Err(error) if error.kind() == ErrorKind::LeaseLost => {
                return (SettleEnd::LaneLost, work);
            }
            Err(error) => error,
        };
        context.store_failed("settle", &error);
        failures += 1;
        let pause = store_pause(&context, failures);
        if Instant::now() + pause >= lease_ends {
            return (SettleEnd::Dropped, work);
        }
        tokio::time::sleep(pause).await;
    }
}
