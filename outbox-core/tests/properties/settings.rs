//! Which settings are accepted: exactly those within the documented bounds, whatever is written.

use std::time::Duration;

use outbox_core::{BreakerPolicy, Error, ErrorKind, RelayConfig, RetryPolicy, WorkerId};
use proptest::prelude::*;

use crate::given::{MS, YEAR, durations, within};

/// Mostly what is right, so that most of many are; else anything.
fn mostly(right: impl Strategy<Value = Duration>) -> impl Strategy<Value = Duration> {
    prop_oneof![9 => right, 1 => durations()]
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 0usize..2, 9 => any::<usize>()]
}

fn counts() -> impl Strategy<Value = u32> {
    prop_oneof![1 => 0u32..2, 6 => any::<u32>()]
}

fn workers() -> impl Strategy<Value = Option<WorkerId>> {
    let names = prop_oneof![8 => "[a-z-]{1,9}", 1 => Just(String::new()), 1 => any::<String>()];
    proptest::option::of(names.prop_map(WorkerId))
}

fn relay_configs() -> impl Strategy<Value = RelayConfig> {
    let poll = (mostly(within(MS, YEAR)), mostly(within(MS, YEAR)), 0u8..8);
    (
        (sizes(), sizes(), poll, workers()),
        proptest::array::uniform6(mostly(within(MS, YEAR))),
        (durations(), durations()),
    )
        .prop_map(
            |((events, bytes, (a, b, swap), worker), times, (retention, dedup_retention))| {
                let [
                    publish_timeout,
                    shutdown_grace,
                    acquire_interval,
                    inspect_interval,
                    clean_interval,
                    store_backoff_max,
                ] = times;
                let (poll_min, poll_max) = if swap == 0 {
                    (a.max(b), a.min(b))
                } else {
                    (a.min(b), a.max(b))
                };
                RelayConfig {
                    batch_events_max: events,
                    batch_bytes_max: bytes,
                    poll_min,
                    poll_max,
                    publish_timeout,
                    shutdown_grace,
                    acquire_interval,
                    inspect_interval,
                    clean_interval,
                    retention,
                    dedup_retention,
                    store_backoff_max,
                    worker,
                }
            },
        )
}

fn retry_policies() -> impl Strategy<Value = RetryPolicy> {
    (
        (durations(), durations(), any::<bool>()),
        (counts(), counts(), counts()),
        durations(),
    )
        .prop_map(
            |((a, b, sorted), (factor, attempts_max, crashes_max), topic_patience)| {
                let (base, cap) = if sorted { (a.min(b), a.max(b)) } else { (a, b) };
                RetryPolicy {
                    base,
                    factor,
                    cap,
                    attempts_max,
                    crashes_max,
                    topic_patience,
                    ..RetryPolicy::default()
                }
            },
        )
}

/// Those of the fields whose condition does not hold.
fn wrong_of(fields: &[(&'static str, bool)]) -> Vec<&'static str> {
    fields
        .iter()
        .filter(|(_, right)| !right)
        .map(|(field, _)| *field)
        .collect()
}

/// Accepted when nothing is wrong, else refused in one line that names something wrong.
fn judge(
    checked: Result<(), Error>,
    wrong: &[&str],
    named: impl Fn(&str, &str) -> bool,
) -> Result<(), TestCaseError> {
    let Err(error) = checked else {
        prop_assert!(wrong.is_empty(), "accepted: {wrong:?}");
        return Ok(());
    };
    prop_assert_eq!(error.kind(), ErrorKind::Configuration);
    let text = error.to_string();
    prop_assert!(
        wrong.iter().any(|field| named(&text, field)),
        "{text}: {wrong:?}"
    );
    prop_assert!(!text.contains(char::is_control), "{text:?}");
    Ok(())
}

/// Named as a value beside the message.
fn as_context(text: &str, field: &str) -> bool {
    text.contains(&format!("(field={field})"))
}

/// From 1 ms, below which a loop would spin, to 365 days, above which points in time overflow.
fn is_pause(value: Duration) -> bool {
    MS <= value && value <= YEAR
}

proptest! {
    #[test]
    fn a_relay_accepts_what_its_bounds_allow(config in relay_configs()) {
        let worker = config.worker.as_ref().is_none_or(|w| !w.0.is_empty() && !w.0.chars().any(char::is_control));
        let wrong = wrong_of(&[
            ("poll_min", is_pause(config.poll_min)),
            ("poll_max", config.poll_min <= config.poll_max && config.poll_max <= YEAR),
            ("publish_timeout", is_pause(config.publish_timeout)),
            ("shutdown_grace", config.shutdown_grace <= YEAR),
            ("acquire_interval", is_pause(config.acquire_interval)),
            ("inspect_interval", is_pause(config.inspect_interval)),
            ("clean_interval", is_pause(config.clean_interval)),
            ("store_backoff_max", is_pause(config.store_backoff_max)),
            ("worker", worker),
            ("batch_events_max or batch_bytes_max", config.batch_events_max > 0 && config.batch_bytes_max > 0),
        ]);
        judge(config.validate(), &wrong, as_context)?;
    }

    #[test]
    fn a_breaker_accepts_what_its_bounds_allow(base in durations(), cap in durations(), probe_timeout in durations()) {
        let policy = BreakerPolicy { base, cap, probe_timeout };
        let wrong = wrong_of(&[
            ("base", base >= MS),
            ("cap", base <= cap && cap <= YEAR),
            ("probe_timeout", is_pause(probe_timeout)),
        ]);
        judge(policy.validate(), &wrong, as_context)?;
    }

    #[test]
    fn a_retry_policy_accepts_what_its_bounds_allow(policy in retry_policies()) {
        let wrong = wrong_of(&[
            ("base", policy.base >= MS),
            ("cap", policy.cap >= policy.base),
            ("factor", policy.factor > 0),
            ("attempts_max", policy.attempts_max > 0),
            ("crashes_max", policy.crashes_max > 0),
        ]);
        judge(policy.validate(), &wrong, |text, field| text.contains(&format!(": {field} is ")))?;
    }
}
