//! The renewal of a lane's leases: a live but slow relay is not overtaken.

use std::sync::Arc;

use tokio::time::Instant;

use super::LaneTask;
use crate::{
    error::{ErrorKind, Result},
    store::BatchToken,
};

/// A renewal that was answered.
pub(super) struct Renewal {
    /// The leases are full from here on, on our clock.
    asked_at: Instant,
    tokens: Vec<BatchToken>,
    lost: Result<Vec<BatchToken>>,
}

impl LaneTask {
    pub(super) fn renew(&mut self) {
        self.renew_at = Instant::now() + self.lane.lease() / 3;
        let tokens: Vec<BatchToken> = self
            .ready
            .as_ref()
            .map(|leased| leased.batch.token)
            .into_iter()
            .chain(self.flight.as_ref().map(|flight| flight.token))
            .collect();
        if tokens.is_empty() && !self.context.ordered {
            return;
        }
        let lane = Arc::clone(&self.lane);
        self.renewing = Some(Box::pin(async move {
            let asked_at = Instant::now();
            let lost = lane.renew(&tokens).await;
            Renewal {
                asked_at,
                tokens,
                lost,
            }
        }));
    }

    pub(super) fn renewed(&mut self, renewal: Renewal) {
        self.renewing = None;
        let Renewal {
            asked_at,
            tokens,
            lost,
        } = renewal;
        match lost {
            Ok(lost) => {
                // What was claimed while the call was under way has its own lease still.
                let renewed = |token: &BatchToken| tokens.contains(token) && !lost.contains(token);
                let lease_ends = asked_at + self.lane.lease();
                if let Some(flight) = &mut self.flight
                    && renewed(&flight.token)
                {
                    flight.lease_ends = flight.lease_ends.max(lease_ends);
                }
                if let Some(leased) = &mut self.ready {
                    if renewed(&leased.batch.token) {
                        leased.lease_ends = leased.lease_ends.max(lease_ends);
                    } else if lost.contains(&leased.batch.token) {
                        // It is not sent any more: its lease counts as ended.
                        leased.lease_ends = asked_at;
                    }
                }
            }
            Err(error) => {
                self.lose_if(error.kind() == ErrorKind::LeaseLost);
                self.context.store_failed("renew", &error);
            }
        }
    }
}
