//! Which events a route takes and by which policy they are tried, for any patterns.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use outbox_core::{ErrorKind, OrderClass, Outcome, RetryPolicy, Route, TopicPattern, TopicSet};
use proptest::{
    collection::{btree_set, vec},
    prelude::*,
};
use tokio::time::sleep;

use crate::script::{Script, commit, dead, error, one_lane, run_route};

const MS: Duration = Duration::from_millis(1);

/// Few letters, so that patterns and topics meet often.
fn patterns() -> impl Strategy<Value = String> {
    "[ab]{1,3}|[ab]{0,2}\\*"
}

fn fits(pattern: &str, topic: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => topic.len() >= prefix.len() && topic[..prefix.len()] == *prefix,
        None => pattern == topic,
    }
}

fn parse(pattern: &str) -> TopicPattern {
    pattern.parse().unwrap()
}

/// Each policy is known by its number of attempts.
fn policy(index: usize) -> RetryPolicy {
    RetryPolicy {
        base: MS,
        cap: MS,
        attempts_max: u32::try_from(index).unwrap() + 2,
        ..RetryPolicy::default()
    }
}

/// Runs a relay whose broker takes nothing; gives how often each topic's event was tried, and which
/// of them are dead.
async fn tried(
    route: &[String],
    policies: &[String],
    topics: &BTreeSet<String>,
) -> (Vec<usize>, BTreeSet<String>) {
    let store = one_lane();
    for topic in topics {
        commit(&store, &[(topic, topic, topic)]);
    }
    let publisher = Arc::new(Script::new(OrderClass::InFlight, |_| {
        Outcome::Failed(error(ErrorKind::Refused))
    }));
    let mut built = Route::new("default", publisher.clone())
        .topics(TopicSet::new(route.iter().map(|pattern| parse(pattern))).unwrap());
    for (index, pattern) in policies.iter().enumerate() {
        built = built.policy(parse(pattern), policy(index));
    }
    let relay = run_route(&store, built);
    // Long enough for every attempt of the policies above, too short for the second one of the
    // default policy, which waits for a second at least.
    sleep(Duration::from_millis(900)).await;
    let tries = topics.iter().map(|topic| publisher.tries(topic)).collect();
    let dead = dead(&store).await.into_iter().map(|found| found.topic);
    let answer = (tries, dead.collect());
    relay.stop().await;
    answer
}

proptest! {
    #[test]
    fn a_route_takes_what_fits_a_pattern_and_tries_it_by_the_first_policy_that_fits(
        route in vec(patterns(), 1..3),
        policies in vec(patterns(), 0..4),
        topics in btree_set("[ab]{1,3}", 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (tries, dead) = runtime.block_on(tried(&route, &policies, &topics));
        for (topic, tries) in topics.iter().zip(tries) {
            let taken = route.iter().any(|pattern| fits(pattern, topic));
            let first = policies.iter().position(|pattern| fits(pattern, topic));
            let expected = match first {
                _ if !taken => 0,
                Some(index) => index + 2,
                None => 1,
            };
            prop_assert_eq!(tries, expected, "{}", topic);
            prop_assert_eq!(dead.contains(topic), taken && first.is_some(), "{}", topic);
        }
    }
}
