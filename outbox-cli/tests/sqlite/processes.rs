//! Several relay processes on one file.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::Stdio,
    time::Duration,
};

use outbox_testkit::{block_on, eventually, program::Program};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::Place;

const PATIENCE: Duration = Duration::from_secs(90);
const KEYS: usize = 23;

/// Writes so many events in transactions of 50; `n` counts up over all calls, also within each key.
fn write(place: &Place, from: usize, count: usize) {
    for start in (from..from + count).step_by(50) {
        let mut command = place.command(&["enqueue", "--stdin"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        for n in start..(start + 50).min(from + count) {
            let key = n % KEYS;
            writeln!(
                input,
                r#"{{"topic":"t","type":"T","key":"key-{key}","payload":{{"n":{n}}}}}"#
            )
            .unwrap();
        }
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

fn number(line: &Value) -> u64 {
    line["payload"]["n"].as_u64().unwrap()
}

/// Waits until every number was published at least once.
async fn until_published(place: &Place, count: usize) -> Vec<Value> {
    let all = eventually(PATIENCE, async || {
        let lines = place.published();
        let seen: BTreeSet<u64> = lines.iter().map(number).collect();
        (seen.len() == count).then_some(lines)
    });
    let lines = all.await;
    lines.unwrap_or_else(|| panic!("{} lines of {count} events", place.published().len()))
}

/// The first publications of each key come in the order of its commits (I5).
fn assert_order(lines: &[Value]) {
    let mut seen = BTreeSet::new();
    let mut last = BTreeMap::<String, u64>::new();
    for line in lines.iter().filter(|line| seen.insert(number(line))) {
        let key = line["key"].as_str().unwrap().to_owned();
        let n = number(line);
        let before = last.insert(key.clone(), n);
        assert!(
            before.is_none_or(|before| before < n),
            "{key}: {n} after {before:?}"
        );
    }
}

async fn until_started(relays: &[&Program]) {
    let started = eventually(PATIENCE, async || {
        let all = relays.iter().all(|relay| relay.logged("relay started"));
        all.then_some(())
    });
    started.await.expect("the relays start");
}

fn stop(mut relay: Program) {
    relay.signal(Signal::TERM);
    let ended = relay.wait();
    assert!(ended.success(), "{ended}: {:?}", relay.log());
}

/// Two processes share the lanes of one file: each event is published once, each key in order.
#[test]
fn two_relays_publish_each_event_once_and_in_order() {
    block_on(async {
        let place = Place::new();
        place.run(&["migrate"]);
        let (one, two) = (place.relay("30s"), place.relay("30s"));
        until_started(&[&one, &two]).await;
        write(&place, 0, 1_000);
        let lines = until_published(&place, 1_000).await;
        stop(one);
        stop(two);
        assert_eq!(place.published().len(), 1_000, "some came twice");
        assert_order(&lines);
    });
}

/// The name under which a relay holds its lanes.
fn worker(relay: &Program) -> String {
    let log = relay.log();
    let words = log.iter().flat_map(|line| line.split_whitespace());
    let name = words.filter_map(|word| word.strip_prefix("worker=")).next();
    name.unwrap_or_else(|| panic!("no worker in {log:?}"))
        .to_owned()
}

/// Stops the relay at a moment at which it has events in flight.
async fn freeze_with_events_in_flight(place: &Place, relay: &Program) {
    let worker = worker(relay);
    let frozen = eventually(PATIENCE, async || {
        if place.published().is_empty() {
            return None;
        }
        relay.signal(Signal::STOP);
        let lanes = &status(place)["lanes"];
        let flying = lanes.as_array().unwrap().iter().any(|lane| {
            lane["owner"] == worker.as_str() && lane["in_flight"]["value"].as_u64() > Some(0)
        });
        if !flying {
            relay.signal(Signal::CONT);
        }
        flying.then_some(())
    });
    frozen.await.expect("the relay is never at work");
}

fn status(place: &Place) -> Value {
    serde_json::from_str(&place.run(&["status", "--json"])).unwrap()
}

/// One of two processes dies with events in flight: the other goes on with its lanes; nothing is lost,
/// nothing passes an earlier event of its key.
#[test]
fn crash_holds_lock_a_killed_relay_loses_nothing() {
    block_on(async {
        let place = Place::new();
        place.run(&["migrate"]);
        write(&place, 0, 1_500);
        let (mut killed, survivor) = (place.relay("1s"), place.relay("1s"));
        until_started(&[&killed]).await;
        freeze_with_events_in_flight(&place, &killed).await;
        killed.kill();
        write(&place, 1_500, 500);
        let lines = until_published(&place, 2_000).await;
        assert_order(&lines);
        let settled = eventually(PATIENCE, async || {
            (status(&place)["in_flight"]["value"] == 0).then_some(())
        });
        settled.await.expect("everything is settled");
        stop(survivor);
        for counted in ["pending", "held", "dead"] {
            assert_eq!(status(&place)[counted]["value"], 0, "{counted}");
        }
    });
}
