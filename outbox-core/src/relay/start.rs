//! The start of a relay: the store first, then every route by itself, so that one whose
//! destination is down, silent or refuses this relay holds up no other.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    config::RelayConfig,
    gates::Jitter,
    route::{RouteContext, run_route},
    store_watch::StoreWatch,
};
use crate::{
    breaker::Gate,
    check::{STORE_CHECK_TIMEOUT, check_within},
    directive::remedy,
    error::{Error, Result},
    retry::backoff,
    store::OutboxStore,
};

/// Waits until the store can be worked on; false when told to stop before.
pub(super) async fn check_store(
    store: &dyn OutboxStore,
    config: &RelayConfig,
    jitter: &Jitter,
    watch: &StoreWatch,
    stop: &CancellationToken,
) -> Result<bool> {
    for failures in 1.. {
        let checked = tokio::select! { biased;
            () = stop.cancelled() => return Ok(false),
            checked = check_within(STORE_CHECK_TIMEOUT, || store.check()) => checked,
        };
        let Err(error) = checked else {
            watch.answered();
            return Ok(tokio::select! { biased;
                () = stop.cancelled() => false,
                () = tell_of_settings(store) => true,
            });
        };
        if error.kind().needs_operator() {
            return Err(error);
        }
        watch.failed("check", None, &error);
        let base = Duration::from_millis(100);
        let pause = backoff(base, 2, config.store_backoff_max, failures, jitter.unit());
        tokio::select! { biased;
            () = stop.cancelled() => return Ok(false),
            () = sleep(pause) => {}
        }
    }
    Ok(false)
}

/// One line where the store is not as its settings say.
async fn tell_of_settings(store: &dyn OutboxStore) {
    let checked = check_within(STORE_CHECK_TIMEOUT, || store.check_settings()).await;
    // One that does not answer is met by the lanes.
    if let Err(error) = checked
        && error.kind().needs_operator()
    {
        let remedy = remedy(error.kind());
        warn!(store = store.name(), %error, remedy, "the store is not as its settings say: the relay goes by what is there");
    }
}

/// Starts a task for each route and waits until every destination has answered once, or its time
/// was over.
///
/// # Errors
/// When every destination refuses this relay: the first route's refusal.
pub(super) async fn start_routes(
    contexts: Vec<Arc<RouteContext>>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let (told, mut answers) = mpsc::unbounded_channel();
    let count = contexts.len();
    for (number, context) in contexts.into_iter().enumerate() {
        let told = told.clone();
        let answered = move |refusal: Option<Error>| {
            // Nobody listens any more once the relay is stopping.
            let _ = told.send((number, refusal));
        };
        tasks.spawn(work_route(context, stop.clone(), answered));
    }
    drop(told);
    let mut refusals = Vec::new();
    while let Some((number, refusal)) = answers.recv().await {
        refusals.extend(refusal.map(|error| (number, error)));
    }
    refusals.sort_by_key(|(number, _)| *number);
    if refusals.len() < count {
        return Ok(());
    }
    refusals
        .into_iter()
        .next()
        .map_or(Ok(()), |(_, first)| Err(first))
}

/// Works the route as soon as its destination lets it. `answered` is told once, after the first
/// check: the error if an operator is needed.
async fn work_route(
    context: Arc<RouteContext>,
    stop: CancellationToken,
    answered: impl FnOnce(Option<Error>) + Send,
) {
    let mut answered = Some(answered);
    loop {
        let limit = context.config.publish_timeout;
        let checked = tokio::select! { biased;
            () = stop.cancelled() => return,
            checked = check_within(limit, || context.publisher.check()) => checked,
        };
        let refusal = match checked {
            Ok(()) => {
                context.destination_reachable();
                None
            }
            Err(error) => {
                context.destination_failed(Instant::now(), &error);
                let refused = error.kind().needs_operator();
                refused.then(|| error.context("route", &context.name))
            }
        };
        let refused = refusal.is_some();
        if let Some(answered) = answered.take() {
            answered(refusal);
        }
        if !refused {
            break;
        }
        // Nothing is published to a destination that would not have this relay.
        while let Gate::Open(until) = context.gates.destination(Instant::now()) {
            tokio::select! { biased;
                () = stop.cancelled() => return,
                () = sleep_until(until) => {}
            }
        }
    }
    run_route(context, stop).await;
}
