//! The probe of a paused destination for which no event waits: without it the route would stay
//! paused, and the relay not ready, until the next event comes.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use tokio::time::{Instant, timeout};

use super::LaneTask;
use crate::error::{Error, ErrorKind, Result};

impl LaneTask {
    /// Uses the probe that this lane holds to ask the publisher itself.
    pub(super) fn start_check(&mut self) {
        let publisher = Arc::clone(&self.context.publisher);
        let deadline = self.context.config.publish_timeout;
        self.checking = Some(Box::pin(async move {
            let check = AssertUnwindSafe(publisher.check()).catch_unwind();
            let failure = |kind, what| Error::new(kind, "check", what);
            match timeout(deadline, check).await {
                Ok(Ok(checked)) => checked,
                Ok(Err(_panic)) => Err(failure(ErrorKind::Panic, "the publisher panicked")),
                Err(_elapsed) => Err(failure(ErrorKind::Timeout, "no answer in time")),
            }
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
