//! `outbox demo`: the real store, relay and dead letters on a SQLite file of its own, told step by step.
//!
//! A service (`shop`) writes orders with their events, a relay of the engine sends them to a consumer
//! (`consumer`) that prints what it receives, and the story (`story`) is checked at its end (`check`).

mod check;
mod consumer;
mod next;
mod place;
mod shop;
mod story;
mod teller;

use tokio::signal::unix::{SignalKind, signal};

use self::{place::Place, teller::Teller};
use super::relay::on_threads;
use crate::{
    args::{DemoArgs, GlobalArgs},
    config::{LogConfig, Settings},
    exit::Failure,
    logging,
    signals::Signals,
};

/// What fails is part of the story, and the relay's warnings would be written across it.
const LOG_LEVEL: &str = "off";

/// Tells the story on a file that goes with it, unless it is to be kept.
pub(super) fn run(args: &DemoArgs, global: &GlobalArgs) -> Result<(), Failure> {
    if global.store_url.is_some() || global.schema.is_some() {
        return Err(Failure::usage(
            "demo: it makes a database of its own — leave out --store-url and --schema",
        ));
    }
    let log = LogConfig::new(&Settings::default().log, global, LOG_LEVEL);
    logging::init(&log, None)?;
    // Dropped after the threads have ended: what still works on the file could make a part of it anew.
    let mut place = None;
    on_threads(perform(args, &mut place))?;
    if let Some(place) = place.filter(|_| args.keep.is_some()) {
        place.keep();
    }
    Ok(())
}

async fn perform(args: &DemoArgs, place: &mut Option<Place>) -> Result<(), Failure> {
    // Before there is a file: a signal that comes now must find somebody who removes it.
    let mut signals = Signals::listen()?;
    let mut hangup = signal(SignalKind::hangup())
        .map_err(|error| Failure::failed(format!("listen for signals: {error}")))?;
    let place = place.insert(match &args.keep {
        Some(Some(file)) => Place::named(file)?,
        _ => Place::temporary()?,
    });
    let teller = Teller::new();
    tokio::select! {
        biased;
        ended = teller.reader_gone() => ended,
        () = signals.next() => Err(stopped()),
        _ = hangup.recv() => Err(stopped()),
        told = story::tell(place, args.keep.is_some(), &teller) => told,
    }
}

fn stopped() -> Failure {
    Failure::interrupted("demo: stopped before its end; its file is removed")
}
