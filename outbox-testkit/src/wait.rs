//! Waiting for what must become true, instead of sleeping and hoping.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Asks again and again, every 10 ms, until the answer is `Some`; `None` when the timeout passed.
/// The question is asked at least once, and once more after the timeout.
pub async fn eventually<T>(
    timeout: Duration,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let last = Instant::now() >= deadline;
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        if last {
            return None;
        }
        sleep(Duration::from_millis(10)).await;
    }
}
