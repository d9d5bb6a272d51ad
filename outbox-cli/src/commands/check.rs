//! `outbox relay --check`

use std::{fmt::Write as _, time::Duration};

use futures::future::join_all;
use outbox_core::{RelayConfig, check_within};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{GlobalArgs, RelayArgs},
    config::{Parts, RouteConfig, Settings, StoreConfig, refuse_overlap},
    exit::Failure,
    output, publishers, store,
};

/// What the checks found, a line each.
#[derive(Default)]
struct Findings {
    text: String,
    total: usize,
    wrong: usize,
    /// The first that is wrong: its code is that of all.
    first: Option<Failure>,
}

impl Findings {
    /// Takes a finding down; gives what is right.
    fn add<T>(&mut self, what: &str, found: Result<T, Failure>) -> Option<T> {
        self.total += 1;
        match found {
            Ok(right) => {
                let _ = writeln!(self.text, "ok     {}", output::plain(what));
                Some(right)
            }
            Err(failure) => {
                self.wrong += 1;
                let _ = writeln!(self.text, "wrong  {}: {failure}", output::plain(what));
                self.first.get_or_insert(failure);
                None
            }
        }
    }
}

/// Checks everything that a relay would need and prints what it found, all of it. Claims, sends and
/// writes nothing. Ends with the code of the first finding that is wrong.
pub(super) async fn run(
    args: &RelayArgs,
    settings: Settings,
    global: &GlobalArgs,
) -> Result<(), Failure> {
    let mut findings = Findings::default();
    let store = match StoreConfig::new(settings.store.clone(), global) {
        Ok(config) => store::open_to_change(config).await,
        Err(failure) => Err(failure),
    };
    if let Some(store) = findings.add("store", store) {
        let checked = store::check_settings(&*store).await;
        findings.add("settings of the store", checked.map_err(Failure::from));
    }
    if let Some(parts) = findings.add("routes and flags", Parts::new(settings, args)) {
        let relay = findings.add("relay settings", parts.relay);
        let limit = relay.unwrap_or_else(RelayConfig::default).publish_timeout;
        let mut routes = Vec::new();
        for (name, route) in parts.routes {
            let what = format!("settings of route {name}");
            routes.extend(findings.add(&what, route));
        }
        findings.add("topics of the routes", refuse_overlap(&routes));
        // All at once: together they take no longer than the slowest.
        let asked = join_all(routes.into_iter().map(async |route| {
            let what = format!("destination of route {}", route.name);
            (what, destination(route, limit).await)
        }));
        for (what, found) in asked.await {
            findings.add(&what, found);
        }
    }
    output::print(&findings.text)?;
    let Findings { total, wrong, .. } = findings;
    match findings.first {
        None => Ok(()),
        Some(first) => Err(first.summed_up(format!(
            "check relay: {wrong} of {total} findings are wrong — standard output tells each with \
             what to do; the exit code is that of the first"
        ))),
    }
}

/// Whether the publisher can be made and finds its broker as it needs it, asked as a relay asks.
async fn destination(route: RouteConfig, limit: Duration) -> Result<(), Failure> {
    let publisher = publishers::open(route.publisher, &CancellationToken::new())?;
    let checked = check_within(limit, || publisher.check()).await;
    checked.map_err(|error| error.context("route", route.name).into())
}
