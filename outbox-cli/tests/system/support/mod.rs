//! What the tests are written in.

mod place;
mod program;
mod stream;

pub(crate) use place::Place;
pub(crate) use program::{Running, Settings};
pub(crate) use stream::Entry;

use std::time::Duration;

use outbox_testkit::eventually;

/// How long anything may take that a test waits for: far above what it takes, since several tests
/// share two cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until it holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let held = eventually(PATIENCE, async || holds().await.then_some(())).await;
        assert!(held.is_some(), "{caller}: waited in vain for {what}");
    }
}

/// A number of the case's full form in a soak, else one that takes seconds.
pub(crate) fn scaled<T>(usual: T, soak: T) -> T {
    if std::env::var_os("OUTBOX_SOAK").is_some_and(|value| value == "1") {
        soak
    } else {
        usual
    }
}
