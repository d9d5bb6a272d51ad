//! The probe of a paused destination for which no event waits: without it the route would stay
//! paused, and the relay not ready, until the next event comes.

use std::sync::Arc;

use tokio::time::Instant;

use super::LaneTask;
use crate::{check::check_within, error::Result};

impl LaneTask {
    /// Uses the probe that this lane holds to ask the publisher itself.
    pub(super) fn start_check(&mut self) {
        let publisher = Arc::clone(&self.context.publisher);
        let limit = self.context.config.publish_timeout;
        self.checking = Some(Box::pin(async move {
            check_within(limit, || publisher.check()).await
        }));
    }

    pub(super) fn checked(&mut self, checked: Result<()>) {
        self.checking = None;
        self.holds_probe = false;
        match checked {
            Ok(()) => self.context.destination_reachable(),
            Err(error) => self.context.destination_failed(Instant::now(), &error),
        }
    }
}
