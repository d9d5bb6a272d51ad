//! Every broker is away for a while and writers go on: nothing is lost, nothing is blamed on events, and
//! the order of each key stands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::Event;
use outbox_testkit::invariants::KeyOrder;
use tokio::task::block_in_place;

use crate::support::{File, Settings, brokers, until};

const OUTAGE: Duration = Duration::from_secs(20);
/// Each topic gets an event so often: 50 a second.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);
/// A key has an event every second, and so a queue of them in the outage.
const KEYS: usize = 50;
/// What one call of a publisher holds at most, in each of the lanes: as much may come twice when a
/// server dies before it has answered.
const IN_FLIGHT_MAX: usize = 100;

/// Writes until it is told to stop; gives what was committed, in that order.
async fn write(file: &File, topics: &[String], stop: &AtomicBool) -> Vec<Event> {
    let mut written = vec![];
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let event = |topic: &String| {
            Event::new(topic, "Numbered")
                .key(format!("k{}", number % KEYS))
                .header("number", number.to_string())
                .json(&serde_json::json!({ "number": number }))
                .unwrap()
        };
        let events: Vec<_> = topics.iter().map(event).collect();
        file.write(&events).await;
        written.extend(events);
        number += 1;
        tokio::time::sleep(WRITE_INTERVAL).await;
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_down_for_20_s_burn_no_attempt_and_keep_order() {
    let mut brokers = block_in_place(brokers::all);
    let topics = brokers::prepare(&mut brokers).await;
    let settings = brokers::routed(Settings::relay(), &brokers);
    let file = Arc::new(File::new(settings.set("relay.batch_events_max", "25")));
    let relay = file.settings.started().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (file, topics, stop) = (Arc::clone(&file), topics.clone(), Arc::clone(&stop));
        async move { write(&file, &topics, &stop).await }
    });
    let of = |topic: &str, condition: &str| format!("topic = '{topic}' AND {condition}");
    for topic in &topics {
        until("a flow", async || {
            file.count(&of(topic, "status = 'done'")).await > 30
        })
        .await;
    }

    block_in_place(|| {
        for broker in &mut brokers {
            broker.server().kill().unwrap();
        }
    });
    until("pauses of all routes", async || {
        let log = relay.log();
        let paused = log.iter().filter(|line| line.contains("route paused"));
        paused.count() >= brokers.len()
    })
    .await;
    relay.assert_rests(OUTAGE).await;
    for topic in &topics {
        let waiting = file.count(&of(topic, "status <> 'done'")).await;
        assert!(waiting > 500, "{topic}: writers went on: {waiting}");
    }
    let burnt = "attempts > 1 OR crashes > 0 OR dead_reason IS NOT NULL";
    assert_eq!(file.count(burnt).await, 0, "no attempt is burnt");

    block_in_place(|| brokers::restart(&mut brokers));
    relay.until_log("destination answers again").await;
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.unwrap();
    until("an empty outbox", async || {
        file.count("status <> 'done'").await == 0
    })
    .await;
    assert_eq!(file.count("attempts <> 1 OR crashes > 0").await, 0);
    let exceptions = relay.metric("outbox_order_exceptions_total").await;
    assert!(exceptions.abs() < 0.5, "{exceptions} exceptions to I5");
    relay.stop().await;

    let reports =
        brokers::assert_all_there("20 s outage", &mut brokers, &written, KeyOrder::Hold).await;
    for (topic, report) in reports {
        assert!(report.duplicates <= IN_FLIGHT_MAX, "{topic}: {report}");
    }
}
