//! The loop of one lane: claim → publish → settle, each of the three at most once under way, so that
//! the next claim runs while the last batch is being acknowledged and the one before it is being
//! settled.

mod check;
mod claim;
mod lease;
mod send;

use std::{collections::BTreeSet, future::pending, sync::Arc};

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug_span};

use self::lease::Renewal;
use super::{
    changes::Watch,
    mutation::Mutation,
    pace::Pace,
    plan::BlockedKeys,
    publish::Published,
    route::RouteContext,
    settle::{SettleEnd, Work, settle, store_pause},
};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{Batch, BatchToken, Lane, Settlement},
};

/// Whether the loop goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Working,
    /// Claims no more; waits for what is under way.
    Stopping,
    /// Ends at once: nothing that this lane still writes would count.
    Lost,
}

/// A batch under lease.
struct Leased {
    batch: Batch,
    /// When the claim began; the lease counts from here on our monotonic clock, so that it never
    /// seems longer to us than to the database.
    claimed_at: Instant,
    lease_ends: Instant,
    /// Its place among the claims of this lane.
    number: u64,
}

/// The batch that is being published.
struct Flight {
    token: BatchToken,
    claimed_at: Instant,
    lease_ends: Instant,
    unreadable: Vec<Settlement>,
    /// Keys that its plan parks something of.
    parked: BTreeSet<String>,
}

type Slot<T> = Option<BoxFuture<'static, T>>;

/// Waits for a slot's future; for ever when it is empty.
async fn filled<T>(slot: &mut Slot<T>) -> T {
    match slot {
        Some(future) => future.await,
        None => pending().await,
    }
}

pub(super) struct LaneTask {
    context: Arc<RouteContext>,
    lane: Arc<dyn Lane>,
    stop: CancellationToken,
    pace: Pace,
    blocked: BlockedKeys,
    claiming: Slot<Option<(Instant, Result<Batch>)>>,
    ready: Option<Leased>,
    publishing: Slot<Published>,
    flight: Option<Flight>,
    unsettled: Option<(Work, Instant)>,
    settling: Slot<(SettleEnd, Work)>,
    settling_rewinds: bool,
    renewing: Slot<Renewal>,
    /// The probe of a destination for which no event waits.
    checking: Slot<Result<()>>,
    renew_at: Instant,
    /// The number of the next claim, and the first that is valid after a rewind.
    next_claim: u64,
    first_valid_claim: u64,
    claim_failures: u32,
    claim_not_before: Instant,
    holds_probe: bool,
    gate_changes: Watch,
    phase: Phase,
    /// When it ends, whatever is under way; counts from the end of its work.
    grace_ends: Instant,
}

impl LaneTask {
    pub(super) fn new(
        context: Arc<RouteContext>,
        lane: Arc<dyn Lane>,
        stop: CancellationToken,
    ) -> Self {
        let now = Instant::now();
        Self {
            pace: Pace::new(&context.config),
            renew_at: now + lane.lease() / 3,
            gate_changes: context.gates.watch(),
            context,
            lane,
            stop,
            blocked: BlockedKeys::new(),
            claiming: None,
            ready: None,
            publishing: None,
            flight: None,
            unsettled: None,
            settling: None,
            settling_rewinds: false,
            renewing: None,
            checking: None,
            next_claim: 0,
            first_valid_claim: 0,
            claim_failures: 0,
            claim_not_before: now,
            holds_probe: false,
            phase: Phase::Working,
            grace_ends: now,
        }
    }

    /// Works the lane until told to stop or until it is lost; in the end the lane is released.
    pub(super) async fn run(mut self) {
        self.load_blocked().await;
        loop {
            let wake = self.start_what_can_start();
            let busy =
                self.publishing.is_some() || self.settling.is_some() || self.claiming.is_some();
            let busy = busy && !self.context.mutated(Mutation::ShutdownDropsInFlight);
            if self.phase == Phase::Lost || (self.phase == Phase::Stopping && !busy) {
                break;
            }
            tokio::select! { biased;
                () = self.stop.cancelled(), if self.phase == Phase::Working => {
                    self.phase = Phase::Stopping;
                    self.grace_ends = Instant::now() + self.context.config.shutdown_grace;
                }
                () = sleep_until(self.grace_ends), if self.phase == Phase::Stopping => break,
                (end, work) = filled(&mut self.settling) => self.settled(end, &work),
                renewal = filled(&mut self.renewing) => self.renewed(renewal),
                checked = filled(&mut self.checking) => self.checked(checked),
                published = filled(&mut self.publishing) => self.published(published),
                claim = filled(&mut self.claiming) => {
                    self.claiming = None;
                    if let Some((asked_at, batch)) = claim {
                        self.claimed(asked_at, batch);
                    }
                }
                () = sleep_until(self.renew_at), if self.renewing.is_none() => self.renew(),
                () = self.gate_changes.changed(), if self.phase == Phase::Working => {}
                () = sleep_until(wake), if self.phase == Phase::Working => {}
            }
        }
        self.finish().await;
    }

    async fn load_blocked(&mut self) {
        if self.context.mutated(Mutation::HoldForgotten) {
            return;
        }
        let mut failures = 0;
        while !self.stop.is_cancelled() {
            match self.lane.blocked().await {
                Ok(keys) => {
                    self.blocked = keys.into_iter().collect();
                    return;
                }
                Err(error) if error.kind() == ErrorKind::LeaseLost => {
                    self.phase = Phase::Lost;
                    return;
                }
                Err(error) => {
                    self.context.store_failed("blocked", &error);
                    failures += 1;
                    let pause = store_pause(&self.context, failures);
                    tokio::select! { biased; () = self.stop.cancelled() => {}, () = tokio::time::sleep(pause) => {} }
                }
            }
        }
        // Nothing may be published without knowing what is on hold.
        self.lose_if(self.context.ordered);
    }

    /// Fills empty slots; returns when to look again if nothing else happens.
    fn start_what_can_start(&mut self) -> Instant {
        let now = Instant::now();
        if self.settling.is_none()
            && let Some((work, lease_ends)) = self.unsettled.take()
        {
            self.settling_rewinds = work.rewinds;
            let (context, lane) = (Arc::clone(&self.context), Arc::clone(&self.lane));
            let span = debug_span!("settle", route = self.context.name, lane = %self.lane.id());
            let settle = settle(context, lane, work, lease_ends);
            self.settling = Some(Box::pin(settle.instrument(span)));
        }
        if self.publishing.is_none()
            && self.unsettled.is_none()
            && self.phase == Phase::Working
            && let Some(leased) = self.ready.take()
        {
            self.start_publish(leased, now);
        }
        self.start_claim(now)
    }

    /// The claim may have been made although it failed: then its events are in flight, nobody has
    /// them, and the next claim would hand out what follows (I5). What is under way is finished, and
    /// the lane given back, to be taken anew.
    fn retire(&mut self) {
        if self.phase == Phase::Working {
            self.phase = Phase::Stopping;
            self.grace_ends = Instant::now() + self.context.config.shutdown_grace;
        }
    }

    fn lose_if(&mut self, lost: bool) {
        if lost {
            self.phase = Phase::Lost;
        }
    }

    fn return_probe(&mut self, now: Instant) {
        if std::mem::take(&mut self.holds_probe) {
            self.context.gates.probe_returned(now);
        }
    }

    fn settled(&mut self, end: SettleEnd, work: &Work) {
        self.settling = None;
        match end {
            SettleEnd::Written(settled) => {
                self.context.telemetry.published(&work.done);
                if settled.lost > 0 {
                    self.context.log_lost(&self.lane, settled.lost);
                }
                for key in settled.unblocked {
                    if !self.still_parks(&key) {
                        self.blocked.remove(&key);
                    }
                }
            }
            SettleEnd::LaneLost => self.lose_if(true),
            SettleEnd::Dropped => {
                self.context
                    .log_lost(&self.lane, work.settlements.len() as u64);
                // In an ordered store what follows a dropped batch is void: start over.
                let ignored = self.context.mutated(Mutation::DroppedBatchIgnored);
                self.lose_if(self.context.ordered && !ignored);
            }
        }
    }

    /// Whether a batch that is not settled yet parks something of this key: then its settle, or a
    /// later one, unblocks it.
    fn still_parks(&self, key: &str) -> bool {
        if self.context.mutated(Mutation::UnblockedTooEarly) {
            return false;
        }
        let unsettled = self
            .unsettled
            .as_ref()
            .is_some_and(|(work, _)| work.parked.contains(key));
        unsettled
            || self
                .flight
                .as_ref()
                .is_some_and(|flight| flight.parked.contains(key))
    }

    /// Gives back what is left. A batch whose answers did not come in time was not settled: it is
    /// published again, with the same ids (I3, I4).
    async fn finish(mut self) {
        self.return_probe(Instant::now());
        drop((
            self.claiming.take(),
            self.publishing.take(),
            self.settling.take(),
            self.renewing.take(),
            self.checking.take(),
        ));
        let limit = std::time::Duration::from_millis(500);
        let released = tokio::time::timeout(limit, self.lane.release()).await;
        let failure = match released {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(Error::new(
                ErrorKind::Timeout,
                "release",
                "no answer; leases run out by themselves",
            )),
        };
        if let Some(error) = failure {
            self.context.store_failed("release", &error);
        }
    }
}
