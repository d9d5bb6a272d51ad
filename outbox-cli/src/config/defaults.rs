//! What was written over the defaults of the core.

use std::time::Duration;

use outbox_core::{BreakerPolicy, RelayConfig, RetryPolicy, WorkerId};

use super::{
    duration::Span,
    model::{BreakerSettings, RelaySettings, RetrySettings, StoreSettings},
};

pub(super) fn duration(span: Option<Span>) -> Option<Duration> {
    span.map(|span| span.0)
}

/// Sets what was written and keeps the rest.
pub(crate) fn set<T>(target: &mut T, written: Option<T>) {
    if let Some(value) = written {
        *target = value;
    }
}

/// What a relay does, and how long what it delivered is kept.
pub(super) fn relay(settings: RelaySettings, store: &StoreSettings) -> RelayConfig {
    let mut config = RelayConfig::default();
    set(&mut config.batch_events_max, settings.batch_events_max);
    set(&mut config.batch_bytes_max, settings.batch_bytes_max);
    set(&mut config.poll_min, duration(settings.poll_min));
    set(&mut config.poll_max, duration(settings.poll_max));
    set(
        &mut config.publish_timeout,
        duration(settings.publish_timeout),
    );
    set(
        &mut config.shutdown_grace,
        duration(settings.shutdown_grace),
    );
    set(
        &mut config.acquire_interval,
        duration(settings.acquire_interval),
    );
    set(
        &mut config.inspect_interval,
        duration(settings.inspect_interval),
    );
    set(
        &mut config.clean_interval,
        duration(settings.clean_interval),
    );
    set(&mut config.retention, duration(store.retention));
    set(&mut config.dedup_retention, duration(store.dedup_retention));
    set(
        &mut config.store_backoff_max,
        duration(settings.store_backoff_max),
    );
    config.worker = settings.worker.map(WorkerId);
    config
}

pub(super) fn retry(settings: &RetrySettings, mut policy: RetryPolicy) -> RetryPolicy {
    set(&mut policy.base, duration(settings.base));
    set(&mut policy.factor, settings.factor);
    set(&mut policy.cap, duration(settings.cap));
    set(&mut policy.attempts_max, settings.attempts_max);
    set(&mut policy.crashes_max, settings.crashes_max);
    set(
        &mut policy.topic_patience,
        duration(settings.topic_patience),
    );
    set(&mut policy.on_dead, settings.on_dead.map(Into::into));
    policy
}

pub(super) fn breaker(settings: &BreakerSettings) -> BreakerPolicy {
    let mut policy = BreakerPolicy::default();
    set(&mut policy.base, duration(settings.base));
    set(&mut policy.cap, duration(settings.cap));
    set(&mut policy.probe_timeout, duration(settings.probe_timeout));
    policy
}
