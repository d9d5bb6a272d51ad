//! Start, idle, stop, and leases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox_core::{
    BreakerPolicy, ErrorKind, Inspect, OrderClass, Outcome, RelayConfig, Route, WorkerId,
};
use outbox_testkit::memory::{MemoryOptions, MemoryStore};
use tokio::time::{Instant, sleep};

use crate::script::{Script, commit, drained, error, one_lane, quick_policy, run, run_with};

fn good() -> Script {
    Script::new(OrderClass::InFlight, |_| Outcome::delivered())
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_answers_and_gives_back_the_rest() {
    let store = one_lane();
    let names: Vec<String> = (0..2000).map(|n| n.to_string()).collect();
    let events: Vec<_> = names
        .iter()
        .map(|name| ("t", name.as_str(), name.as_str()))
        .collect();
    commit(&store, &events);
    let publisher = Arc::new(good().delay(Duration::from_millis(500)));
    let relay = run(&store, &publisher, quick_policy());
    sleep(Duration::from_millis(700)).await;
    let started = Instant::now();
    relay.stop().await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    let delivered = publisher.names().len();
    let found = store.inspect(5000).await.unwrap();
    assert_eq!(found.in_flight.value, 0);
    assert_eq!(
        usize::try_from(found.pending.value).unwrap(),
        2000 - delivered,
        "acked means done, the rest is free at once"
    );

    let again = run(&store, &publisher, quick_policy());
    drained(&store).await;
    again.stop().await;
    assert_eq!(publisher.names().len(), 2000, "no copies");
    assert!(
        publisher
            .delivered
            .lock()
            .unwrap()
            .iter()
            .all(|seen| seen.attempts == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_a_hanging_broker_ends_within_the_grace() {
    let store = one_lane();
    commit(&store, &[("t", "k", "1")]);
    let publisher = Arc::new(good().delay(Duration::from_secs(30)));
    let config = RelayConfig {
        shutdown_grace: Duration::from_secs(2),
        ..RelayConfig::default()
    };
    let relay = run_with(&store, Route::new("r", publisher.clone()), config);
    sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    relay.stop().await;
    assert!(
        started.elapsed() <= Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    let found = store.inspect(10).await.unwrap();
    assert_eq!(
        (found.pending.value, found.in_flight.value),
        (1, 0),
        "not done without an answer (I3)"
    );
}

#[tokio::test(start_paused = true)]
async fn lease_expires_slow_publish() {
    let store = MemoryStore::new(MemoryOptions {
        lanes: 2,
        lease: Duration::from_secs(2),
        ..MemoryOptions::default()
    });
    let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let events: Vec<_> = names
        .iter()
        .map(|name| ("t", name.as_str(), name.as_str()))
        .collect();
    commit(&store, &events);
    let publisher = Arc::new(good().delay(Duration::from_secs(7)));
    let (first, second) = (
        run(&store, &publisher, quick_policy()),
        run(&store, &publisher, quick_policy()),
    );
    drained(&store).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(
        publisher.names().len(),
        20,
        "a live but slow relay renews and is not overtaken: no copies"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_relays_lanes_are_taken_over_after_the_lease() {
    let store = one_lane();
    commit(&store, &[("t", "k", "1"), ("t", "k", "2")]);
    let stuck = Arc::new(good().delay(Duration::from_secs(25)));
    let first = run(&store, &stuck, quick_policy());
    sleep(Duration::from_secs(1)).await;
    first.task.abort();
    let publisher = Arc::new(good());
    let second = run(&store, &publisher, quick_policy());
    let started = Instant::now();
    drained(&store).await;
    assert!(
        started.elapsed() < Duration::from_secs(40),
        "lease of 30 s and a poll: {:?}",
        started.elapsed()
    );
    second.stop().await;
    assert_eq!(publisher.first_by_key()["k"], ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_polls_at_its_pace_and_wakes_fast() {
    let store = one_lane();
    let publisher = Arc::new(good());
    let relay = run(&store, &publisher, quick_policy());
    sleep(Duration::from_secs(60)).await;
    commit(&store, &[("t", "k", "1")]);
    sleep(Duration::from_millis(30)).await;
    assert_eq!(publisher.names(), ["1"], "a poll of 20 ms and a publish");
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_route_is_ready_again_without_an_event() {
    let store = one_lane();
    let (down, asked) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_down, count) = (Arc::clone(&down), Arc::clone(&asked));
    let publisher = Arc::new(good().check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        if is_down.load(Ordering::Relaxed) {
            return Err(error(ErrorKind::Unavailable));
        }
        Ok(())
    }));
    let relay = run(&store, &publisher, quick_policy());
    sleep(Duration::from_secs(600)).await;
    assert!(!relay.health.ready());
    let checks = asked.load(Ordering::Relaxed);
    assert!((40..200).contains(&checks), "with pauses: {checks}");
    down.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(16)).await;
    assert!(relay.health.ready(), "{:?}", relay.health.report());
    commit(&store, &[("t", "k", "1")]);
    sleep(Duration::from_millis(30)).await;
    assert_eq!(publisher.names(), ["1"], "nothing is held back any more");
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_settings_are_named() {
    let build = |config: RelayConfig, routes: &[&str]| {
        let mut builder = outbox_core::Relay::builder(Arc::new(one_lane())).config(config);
        for name in routes {
            builder = builder.route(Route::new(*name, Arc::new(good())));
        }
        builder
            .build()
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(build(RelayConfig::default(), &["a", "b"]), "");
    assert!(build(RelayConfig::default(), &[]).contains("no route"));
    assert!(build(RelayConfig::default(), &["a", "a"]).contains("same name"));
    assert!(
        build(
            RelayConfig {
                batch_events_max: 0,
                ..RelayConfig::default()
            },
            &["a"]
        )
        .contains("batch_events_max")
    );
    assert!(
        build(
            RelayConfig {
                poll_min: Duration::ZERO,
                ..RelayConfig::default()
            },
            &["a"]
        )
        .contains("poll_min")
    );
    assert!(
        build(
            RelayConfig {
                poll_max: Duration::from_millis(1),
                ..RelayConfig::default()
            },
            &["a"]
        )
        .contains("poll_max")
    );
    for (field, config) in [
        (
            "shutdown_grace",
            RelayConfig {
                shutdown_grace: Duration::MAX,
                ..RelayConfig::default()
            },
        ),
        (
            "acquire_interval",
            RelayConfig {
                acquire_interval: Duration::MAX,
                ..RelayConfig::default()
            },
        ),
        (
            "worker",
            RelayConfig {
                worker: Some(WorkerId("a\0".to_owned())),
                ..RelayConfig::default()
            },
        ),
    ] {
        let error = build(config, &["a"]);
        assert!(error.contains(&format!("field={field}")), "{error}");
    }
    let spinning = BreakerPolicy {
        base: Duration::ZERO,
        ..BreakerPolicy::default()
    };
    let refused = outbox_core::Relay::builder(Arc::new(one_lane()))
        .route(Route::new("a", Arc::new(good())).breaker(spinning))
        .build();
    assert!(refused.err().unwrap().to_string().contains("field=base"));
}
