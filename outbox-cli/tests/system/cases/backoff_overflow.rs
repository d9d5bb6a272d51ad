//! After any number of attempts the next one is due within the policy's bounds, never at once and
//! never out of the calendar.

use std::time::Duration;

use outbox_core::{RelayConfig, RetryPolicy, Route, TopicPattern};

use crate::support::{
    Inside, Place,
    inside::{faulty, refused},
    numbered,
};

const ATTEMPTS: [i32; 9] = [30, 31, 32, 62, 63, 64, 65, 1000, i32::MAX];

/// The longest delay that the database is asked for.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Sets the attempts in SQL, fails each event once, and gives the place back.
async fn after_one_failure(policy: RetryPolicy) -> Place {
    let place = Place::shared().await;
    place
        .enqueue(&numbered(&place.topic("t"), ATTEMPTS.len()))
        .await;
    for (number, attempts) in ATTEMPTS.iter().enumerate() {
        let key = format!("k{number}");
        place
            .sql(&format!(
                "UPDATE outbox.queue SET attempts = {attempts} WHERE key = '{key}'"
            ))
            .await;
    }
    let publisher = faulty(place.redis_url());
    publisher.on_event(|_| Some(refused()));
    let route = Route::new("default", publisher).policy(TopicPattern::All, policy);
    let relay = Inside::start(place.queue(|_| ()).await, route, RelayConfig::default());
    place
        .until_count("first_failed_at IS NOT NULL", ATTEMPTS.len())
        .await;
    relay.stop().await;
    place
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backoff_overflow() {
    let minute = Duration::from_secs(60);
    let hour = 60 * minute;
    for (base, factor, cap) in [
        (minute, 2, 5 * minute),
        (hour, 10, 12 * hour),
        (hour, u32::MAX, 5 * CENTURY),
    ] {
        let place = after_one_failure(RetryPolicy {
            base,
            factor,
            cap,
            attempts_max: u32::MAX,
            ..RetryPolicy::default()
        })
        .await;
        // The two clock readings of a settle are some microseconds apart.
        let due = format!(
            "status = 'pending' AND next_attempt_at > now()
                AND next_attempt_at BETWEEN updated_at + {} * interval '1 second' - interval '1 second'
                                        AND updated_at + {} * interval '1 second' + interval '1 second'",
            base.as_secs(),
            cap.min(CENTURY).as_secs(),
        );
        assert_eq!(place.count(&due).await, 9, "{base:?} {factor} {cap:?}");
        for (number, attempts) in ATTEMPTS.iter().enumerate() {
            let counted = place
                .number(&format!(
                    "SELECT attempts::bigint FROM outbox.queue WHERE key = 'k{number}'"
                ))
                .await;
            assert_eq!(
                counted,
                i64::from(attempts.saturating_add(1)),
                "counted up to the type's end"
            );
        }
    }
}

/// Far over its maximum an event is dead, with a reason, and not tried for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backoff_overflow_over_the_maximum_is_dead() {
    let place = after_one_failure(RetryPolicy::default()).await;
    let dead = "status = 'failed' AND dead_reason = 'attempts_exhausted' AND error <> ''";
    assert_eq!(place.count(dead).await, 9);
}
