//! Settings of a relay and of its routes.

use std::{sync::Arc, time::Duration};

use crate::{
    breaker::BreakerPolicy,
    error::{Error, ErrorKind, Result},
    limits::DURATION_MAX,
    publisher::Publisher,
    retention::CleanRequest,
    retry::RetryPolicy,
    store::WorkerId,
    topic::{TopicPattern, TopicSet},
};

/// Settings of a relay; the default suits one process beside its database and broker.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Events of a batch at the most. Default 500: beyond it throughput no longer grows, while the
    /// copies after a crash and the latency of the first event do.
    pub batch_events_max: usize,
    /// Bytes of a batch at the most. Default 4 MiB. A lane holds three batches at the most: one
    /// being settled, one being published, one claimed ahead.
    pub batch_bytes_max: usize,
    /// The pause between claims while traffic flows. Default 2 ms.
    pub poll_min: Duration,
    /// The pause between claims that idleness stretches to. Default 20 ms.
    pub poll_max: Duration,
    /// When the engine stops waiting for a publish call and counts its events as unknown. Default
    /// 35 s: above the publishers' own deadline of 30 s, which ends it in good order.
    pub publish_timeout: Duration,
    /// How long a stop waits for acknowledgements and settles. Default 20 s: below the 30 s after
    /// which most supervisors kill.
    pub shutdown_grace: Duration,
    /// How often lanes are looked for and shared out. Default 3 s.
    pub acquire_interval: Duration,
    /// How often depth and age are read for the metrics. Default 10 s.
    pub inspect_interval: Duration,
    /// How often what is delivered and old is removed from the store. Default 1 min: removing begins
    /// then, and goes on in small steps until nothing is left, at most a quarter of the time at work.
    pub clean_interval: Duration,
    /// How long delivered events are kept. Default 1 day; zero: removed as soon as possible.
    pub retention: Duration,
    /// How long dedup keys are kept. Default 30 days. A repeat that comes later is written as new.
    pub dedup_retention: Duration,
    /// The longest pause between tries while the store fails, and so the longest time until its
    /// return is noticed. Default 10 s.
    pub store_backoff_max: Duration,
    /// Who this relay is in leases. Default: a name that no other process has.
    pub worker: Option<WorkerId>,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            batch_events_max: 500,
            batch_bytes_max: 4 * 1024 * 1024,
            poll_min: Duration::from_millis(2),
            poll_max: Duration::from_millis(20),
            publish_timeout: Duration::from_secs(35),
            shutdown_grace: Duration::from_secs(20),
            acquire_interval: Duration::from_secs(3),
            inspect_interval: Duration::from_secs(10),
            clean_interval: Duration::from_secs(60),
            retention: CleanRequest::RETENTION,
            dedup_retention: CleanRequest::DEDUP_RETENTION,
            store_backoff_max: Duration::from_secs(10),
            worker: None,
        }
    }
}

impl RelayConfig {
    /// What a step of cleaning may remove.
    pub(super) fn clean_request(&self) -> CleanRequest {
        CleanRequest {
            retention: self.retention,
            dedup_retention: self.dedup_retention,
            ..CleanRequest::default()
        }
    }

    /// Checks that the numbers make sense.
    ///
    /// # Errors
    /// `Configuration`, naming the field and the remedy.
    pub fn validate(&self) -> Result<()> {
        let at_least_1_ms = [
            ("poll_min", self.poll_min),
            ("publish_timeout", self.publish_timeout),
            ("acquire_interval", self.acquire_interval),
            ("inspect_interval", self.inspect_interval),
            ("clean_interval", self.clean_interval),
            ("store_backoff_max", self.store_backoff_max),
        ];
        for (field, value) in at_least_1_ms {
            if value < Duration::from_millis(1) {
                return Err(wrong("it is below 1 ms and would spin").context("field", field));
            }
        }
        let durations = at_least_1_ms.into_iter().chain([
            ("poll_max", self.poll_max),
            ("shutdown_grace", self.shutdown_grace),
        ]);
        for (field, value) in durations {
            if value > DURATION_MAX {
                return Err(wrong("it is above 365 days; lower it").context("field", field));
            }
        }
        if self
            .worker
            .as_ref()
            .is_some_and(|worker| worker.0.is_empty() || worker.0.contains(char::is_control))
        {
            return Err(
                wrong("it is empty or holds a control character").context("field", "worker")
            );
        }
        if self.batch_events_max == 0 || self.batch_bytes_max == 0 {
            return Err(wrong("it is 0; a batch holds at least one event")
                .context("field", "batch_events_max or batch_bytes_max"));
        }
        if self.poll_max < self.poll_min {
            return Err(wrong("it is below poll_min; raise it").context("field", "poll_max"));
        }
        Ok(())
    }
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read relay settings", what)
}

/// Topics on their way to one publisher, with their own lanes and breakers: a publisher that is
/// down pauses its own route and nothing else.
#[derive(Clone)]
pub struct Route {
    pub(super) name: String,
    pub(super) topics: TopicSet,
    pub(super) publisher: Arc<dyn Publisher>,
    pub(super) policies: Vec<(TopicPattern, RetryPolicy)>,
    pub(super) strict_order: bool,
    pub(super) breaker: BreakerPolicy,
}

impl Route {
    /// A route for every topic.
    pub fn new(name: impl Into<String>, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            name: name.into(),
            topics: TopicSet::all(),
            publisher,
            policies: Vec::new(),
            strict_order: false,
            breaker: BreakerPolicy::default(),
        }
    }

    /// Only these topics.
    #[must_use]
    pub fn topics(mut self, topics: TopicSet) -> Self {
        self.topics = topics;
        self
    }

    /// How failing events of these topics are tried; the first pattern that fits a topic counts,
    /// and [`RetryPolicy::default`] where none does.
    #[must_use]
    pub fn policy(mut self, topics: TopicPattern, policy: RetryPolicy) -> Self {
        self.policies.push((topics, policy));
        self
    }

    /// In ordered stores: one event per key in flight, also with publishers that keep order in
    /// flight, so that not even a refusal after sending lets a later event of its key pass.
    #[must_use]
    pub fn strict_order(mut self, strict: bool) -> Self {
        self.strict_order = strict;
        self
    }

    /// How long failed topics and a failed destination are left alone.
    #[must_use]
    pub fn breaker(mut self, policy: BreakerPolicy) -> Self {
        self.breaker = policy;
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        if self.name.is_empty() {
            return Err(wrong("a route has no name"));
        }
        self.breaker
            .validate()
            .map_err(|error| error.context("route", &self.name))?;
        self.policies
            .iter()
            .try_for_each(|(_, policy)| policy.validate())
    }
}
