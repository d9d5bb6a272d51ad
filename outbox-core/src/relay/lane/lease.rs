//! The renewal of a lane's leases: a live but slow relay is not overtaken.

use std::sync::Arc;

use tokio::time::Instant;

use super::LaneTask;
use crate::{
    error::{ErrorKind, Result},
    store::BatchToken,
};

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
            (asked_at, lane.renew(&tokens).await)
        }));
    }

    pub(super) fn renewed(&mut self, asked_at: Instant, lost: Result<Vec<BatchToken>>) {
        self.renewing = None;
        let lease_ends = asked_at + self.lane.lease();
        match lost {
            Ok(lost) => {
                if let Some(flight) = self
                    .flight
                    .as_mut()
                    .filter(|flight| !lost.contains(&flight.token))
                {
                    flight.lease_ends = flight.lease_ends.max(lease_ends);
                }
                if let Some(leased) = &mut self.ready {
                    // A lost one is not sent any more: its lease counts as ended.
                    leased.lease_ends = if lost.contains(&leased.batch.token) {
                        asked_at
                    } else {
                        lease_ends
                    };
                }
            }
            Err(error) => {
                self.lose_if(error.kind() == ErrorKind::LeaseLost);
                self.context.store_failed("renew", &error);
            }
        }
    }
}
