//! What the tests are written in.

pub(crate) mod brokers;
pub(crate) mod child;
mod file;
pub(crate) mod inside;
mod net;
mod place;
mod program;
mod server;
mod stream;
mod watch;
mod writers;

use std::time::Duration;

use outbox_core::Event;
use outbox_testkit::eventually;

pub(crate) use self::{
    file::File,
    inside::Inside,
    net::proxy,
    place::Place,
    program::{Running, Settings},
    server::{command, follow},
    stream::{Entry, copies, read},
    watch::TransactionWatch,
    writers::{Written, write},
};

/// How long anything may take that a test waits for: far above what it takes, since several tests
/// share two cores.
pub(crate) fn patience() -> Duration {
    scaled(Duration::from_secs(40), Duration::from_secs(1200))
}

/// Waits until it holds.
#[track_caller]
pub(crate) fn until<'a>(
    what: &'a str,
    mut holds: impl AsyncFnMut() -> bool + 'a,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let held = eventually(patience(), async || holds().await.then_some(())).await;
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

/// Events of this topic, numbered from 0 in key and payload.
pub(crate) fn numbered(topic: &str, count: usize) -> Vec<Event> {
    let event = |number: usize| {
        Event::new(topic, "Numbered")
            .key(format!("k{number}"))
            .header("number", number.to_string())
            .json(&serde_json::json!({ "number": number, "filling": "x".repeat(100) }))
            .unwrap()
    };
    (0..count).map(event).collect()
}
