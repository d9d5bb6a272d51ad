//! What a relay tells about itself while it runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// How a route is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteHealth {
    /// Its destination is paused: nothing is sent until a probe succeeds.
    pub open: bool,
    /// Lanes that this relay works.
    pub lanes: usize,
    /// The destination's last failure, while it is paused.
    pub last_error: Option<String>,
}

/// The state of a relay at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthReport {
    /// The store has been checked and lanes are being worked.
    pub started: bool,
    /// The store's last failure, until a call succeeds again.
    pub store_error: Option<String>,
    /// Every route by name.
    pub routes: BTreeMap<String, RouteHealth>,
}

/// A handle on a relay's state; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<HealthReport>>);

impl Health {
    /// Whether events can flow: the store answers and no route is paused.
    pub fn ready(&self) -> bool {
        self.update(|report| {
            report.started
                && report.store_error.is_none()
                && report.routes.values().all(|route| !route.open)
        })
    }

    /// The state now.
    pub fn report(&self) -> HealthReport {
        self.update(|report| report.clone())
    }

    pub(super) fn started(&self) {
        self.update(|report| report.started = true);
    }

    pub(super) fn store(&self, error: Option<&crate::Error>) {
        self.update(|report| report.store_error = error.map(ToString::to_string));
    }

    pub(super) fn route(&self, name: &str, change: impl FnOnce(&mut RouteHealth)) {
        self.update(|report| change(report.routes.entry(name.to_owned()).or_default()));
    }

    fn update<T>(&self, change: impl FnOnce(&mut HealthReport) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
