//! Random histories: events arrive while others fail, topics and the destination go down and come
//! back, and the relay is killed now and then. Order and completeness must hold in each.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use outbox_core::{
    ErrorKind, OrderClass, Outcome, RelayConfig, RetryPolicy, Route, Scope, TopicPattern,
};
use outbox_testkit::memory::{MemoryOptions, MemoryStore};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::sleep;

use crate::script::{Running, Script, commit, dead, drained, error, run_with};

const EVENTS: usize = 120;
const KEYS: usize = 5;

fn outcome(random: &mut StdRng) -> Outcome {
    let failed = |kind, scope| Outcome::Failed(error(kind).scope(scope));
    match random.random_range(0..40) {
        0..3 => failed(ErrorKind::Refused, Scope::Message),
        3 => Outcome::Unknown(error(ErrorKind::Refused)),
        4 => failed(ErrorKind::TopicNotFound, Scope::Topic),
        5 => failed(ErrorKind::Unavailable, Scope::Destination),
        6 => Outcome::Unknown(error(ErrorKind::ConnectionLost)),
        _ => Outcome::delivered(),
    }
}

async fn history(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let store = MemoryStore::new(MemoryOptions {
        lanes: 1 + random.random_range(0..2),
        ..MemoryOptions::default()
    });
    let answers = Mutex::new(StdRng::seed_from_u64(seed ^ 1));
    let publisher = Script::new(OrderClass::None, move |_| {
        outcome(&mut answers.lock().unwrap())
    })
    .delay(Duration::from_millis(random.random_range(0..40)));
    let publisher = Arc::new(publisher);
    let policy = RetryPolicy {
        attempts_max: 1000,
        crashes_max: 1000,
        ..RetryPolicy::default()
    };
    // Small batches, so that claims run ahead of what is being published.
    let config = RelayConfig {
        batch_events_max: random.random_range(2..9),
        ..RelayConfig::default()
    };
    let run = || -> Running {
        let route = Route::new("r", publisher.clone()).policy(TopicPattern::All, policy.clone());
        run_with(&store, route, config.clone())
    };
    let mut relay = run();
    for n in 0..EVENTS {
        let key = format!("k{}", random.random_range(0..KEYS));
        let topic = ["t", "u"][random.random_range(0..2)];
        commit(&store, &[(topic, &key, &format!("{n:04}"))]);
        if random.random_range(0..4) == 0 {
            sleep(Duration::from_millis(random.random_range(0..200))).await;
        }
        if random.random_range(0..40) == 0 {
            relay.task.abort();
            relay = run();
        }
    }
    let started = tokio::time::Instant::now();
    drained(&store).await;
    // Two leases for a killed relay, and the longest backoff of a key's few failures.
    assert!(
        started.elapsed() < Duration::from_secs(900),
        "seed {seed}: {:?}",
        started.elapsed()
    );
    relay.stop().await;
    assert!(dead(&store).await.is_empty(), "seed {seed}");
    let by_key = publisher.first_by_key();
    let total: usize = by_key.values().map(Vec::len).sum();
    assert_eq!(total, EVENTS, "seed {seed}: I2");
    for (key, names) in by_key {
        assert!(names.is_sorted(), "seed {seed}: I5, {key}: {names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn i2_i5_hold_in_random_histories() {
    for seed in 0..40 {
        history(seed).await;
    }
}
