//! Metrics of a route. Handles are taken once: looking one up per event would cost more than the
//! event.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use metrics::{Counter, Gauge, Histogram};

use crate::{error::Error, metric, outcome::Outcome, store::DeadReason};

/// Topics with a label of their own; the others share `other` (I8).
const TOPIC_LABELS_MAX: usize = 100;

pub(super) struct Telemetry {
    store: &'static str,
    route: String,
    topics: Mutex<BTreeSet<String>>,
    pub(super) publish_seconds: Histogram,
    pub(super) enqueue_to_publish_seconds: Histogram,
    pub(super) batch_events: Histogram,
    pub(super) attempts: Histogram,
    pub(super) order_exceptions: Counter,
    pub(super) leases_lost: Counter,
    pub(super) retries: Counter,
    pub(super) lanes: Gauge,
    pub(super) open: Gauge,
}

macro_rules! handle {
    ($kind:ident, $name:ident, $store:expr, $route:expr) => {
        ::metrics::$kind!(metric::$name, "store" => $store, "route" => $route.to_owned())
    };
}

impl Telemetry {
    pub(super) fn new(store: &'static str, route: &str) -> Self {
        Self {
            store,
            route: route.to_owned(),
            topics: Mutex::default(),
            publish_seconds: handle!(histogram, PUBLISH_SECONDS, store, route),
            enqueue_to_publish_seconds: handle!(
                histogram,
                ENQUEUE_TO_PUBLISH_SECONDS,
                store,
                route
            ),
            batch_events: handle!(histogram, BATCH_EVENTS, store, route),
            attempts: handle!(histogram, ATTEMPTS, store, route),
            order_exceptions: handle!(counter, ORDER_EXCEPTIONS, store, route),
            leases_lost: handle!(counter, LEASES_LOST, store, route),
            retries: handle!(counter, RETRIES, store, route),
            lanes: handle!(gauge, LANES_OWNED, store, route),
            open: handle!(gauge, ROUTE_OPEN, store, route),
        }
    }

    /// Counts what was delivered and written, by topic.
    pub(super) fn published(&self, by_topic: &BTreeMap<String, u64>) {
        for (topic, count) in by_topic {
            ::metrics::counter!(metric::PUBLISHED, "store" => self.store, "route" => self.route.clone(), "topic" => self.label(topic))
                .increment(*count);
        }
    }

    pub(super) fn failure(&self, outcome: &Outcome, error: &Error) {
        let scope = match error.failure_scope() {
            crate::Scope::Message => "message",
            crate::Scope::Topic => "topic",
            crate::Scope::Destination => "destination",
        };
        ::metrics::counter!(
            metric::PUBLISH_FAILURES, "store" => self.store, "route" => self.route.clone(),
            "outcome" => outcome.as_str(), "kind" => error.kind().as_str(), "scope" => scope
        )
        .increment(1);
    }

    pub(super) fn dead(&self, reason: DeadReason) {
        ::metrics::counter!(metric::DEAD, "store" => self.store, "route" => self.route.clone(), "reason" => reason.as_str())
            .increment(1);
    }

    fn label(&self, topic: &str) -> String {
        let mut known = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(topic) {
            return topic.to_owned();
        }
        if known.len() >= TOPIC_LABELS_MAX {
            return "other".to_owned();
        }
        known.insert(topic.to_owned());
        topic.to_owned()
    }
}
