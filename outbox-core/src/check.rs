//! Asking a store or a publisher whether it can work, without being at its mercy.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};

/// How long the check of a store may take: above the stores' own deadlines (5 s to connect, 15 s and
/// the network's grace for the one statement), which end it in better words.
pub const STORE_CHECK_TIMEOUT: Duration = Duration::from_secs(35);

/// Runs a check, [`Store::check`](crate::Store::check) or [`Publisher::check`](crate::Publisher::check),
/// and ends within `limit`, whatever the check does.
///
/// The relay asks this way, publishers within [`RelayConfig::publish_timeout`](crate::RelayConfig::publish_timeout)
/// and the store within [`STORE_CHECK_TIMEOUT`]; so should whoever wants the relay's answer without
/// running one. A check that blocks its thread can't be ended. Needs tokio's clock. Cancellation: as
/// safe as the check's.
///
/// # Errors
/// The check's own; `Timeout` when it gave no answer in time; `Panic` when it panicked.
///
/// ```
/// # use std::time::Duration;
/// # use outbox_core::{Publisher, Result, check_within};
/// # async fn ask(publisher: &dyn Publisher) -> Result<()> {
/// check_within(Duration::from_secs(35), || publisher.check()).await
/// # }
/// ```
pub async fn check_within<F>(limit: Duration, check: impl FnOnce() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let failure = |kind, what| Error::new(kind, "check", what);
    // The call is inside: a check written by hand may panic before it gives its future.
    let guarded = AssertUnwindSafe(async { check().await }).catch_unwind();
    match timeout(limit, guarded).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(_panic)) => Err(failure(ErrorKind::Panic, "the check panicked")),
        Err(_elapsed) => Err(failure(ErrorKind::Timeout, "no answer in time")
            .context("limit", format_args!("{limit:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use async_trait::async_trait;
    use tokio::time::Instant;

    use super::*;
    use crate::{outcome::Outcome, publisher::Publisher, stored_event::StoredEvent};

    const LIMIT: Duration = Duration::from_secs(35);

    struct Hanging;
    struct Panicking;

    #[async_trait]
    impl Publisher for Hanging {
        async fn publish(&self, _: &[StoredEvent]) -> Vec<Outcome> {
            Vec::new()
        }
        async fn check(&self) -> Result<()> {
            pending().await
        }
    }

    #[async_trait]
    impl Publisher for Panicking {
        async fn publish(&self, _: &[StoredEvent]) -> Vec<Outcome> {
            Vec::new()
        }
        async fn check(&self) -> Result<()> {
            panic!("as the test says")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_hangs_ends_with_its_limit() {
        let started = Instant::now();
        let error = check_within(LIMIT, || Hanging.check()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "check: timeout: no answer in time (limit=35s)"
        );
        assert_eq!(started.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_panics_is_a_failure_and_no_end() {
        let panics = check_within(LIMIT, || Panicking.check()).await;
        let at_once = check_within(LIMIT, || -> futures::future::Ready<Result<()>> {
            panic!("before there is a future")
        });
        for checked in [panics, at_once.await] {
            assert_eq!(
                checked.unwrap_err().to_string(),
                "check: panic: the check panicked"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_passed_on() {
        let refusal = || Error::new(ErrorKind::Unauthorized, "sign in", "no");
        let refused = check_within(LIMIT, || ready(Err(refusal()))).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unauthorized);
        assert!(check_within(LIMIT, || ready(Ok(()))).await.is_ok());
    }
}
