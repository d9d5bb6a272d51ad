//! Several relay processes on one file.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
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
    let mut words = log.iter().flat_map(|line| line.split_whitespace());
    let name = words.find_map(|word| word.strip_prefix("worker="));
    name.unwrap_or_else(|| panic!("no worker in {log:?}"))
        .to_owned()
}

/// Waits until the relay stands still with events in flight.
async fn until_stuck_with_events_in_flight(place: &Place, relay: &Program) {
    let worker = worker(relay);
    let mut seen = 0;
    let stuck = eventually(PATIENCE, async || {
        let lanes = &place.status()["lanes"];
        let flying = lanes.as_array().unwrap().iter().any(|lane| {
            lane["owner"] == worker.as_str() && lane["in_flight"]["value"].as_u64() > Some(0)
        });
        seen = if flying { seen + 1 } else { 0 };
        (seen == 20).then_some(())
    });
    stuck.await.expect("the relay is never stuck");
}

/// One of two processes dies with events in flight that it could not publish: the other goes on with
/// its lanes; nothing is lost, nothing passes an earlier event of its key.
#[test]
fn crash_holds_lock_a_killed_relay_loses_nothing() {
    block_on(async {
        let place = Place::new();
        place.run(&["migrate"]);
        write(&place, 0, 1_500);
        // Nobody reads its pipe, which takes a few hundred events: it gets stuck with the next ones.
        let mut killed = Program::start({
            let mut command = place.relay_command("1s");
            command.stdout(Stdio::piped());
            command
        });
        until_started(&[&killed]).await;
        until_stuck_with_events_in_flight(&place, &killed).await;
        let survivor = place.relay("1s");
        until_started(&[&survivor]).await;
        let mut pipe = killed.take_stdout().unwrap();
        killed.kill();
        let mut lines = Vec::new();
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        // The last line is cut where the pipe was full.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        lines.extend(
            whole
                .lines()
                .map(|line| serde_json::from_str(line).unwrap()),
        );
        assert!(!lines.is_empty(), "it published nothing before");

        write(&place, 1_500, 500);
        let all = eventually(PATIENCE, async || {
            let state = place.status();
            let left =
                ["pending", "in_flight", "held", "dead"].map(|of| state[of]["value"].as_u64());
            (left == [Some(0); 4]).then_some(())
        });
        all.await.expect("the other relay goes on");
        stop(survivor);
        lines.extend(place.published());
        let seen: BTreeSet<u64> = lines.iter().map(number).collect();
        assert_eq!(seen.len(), 2_000, "events are lost");
        assert_order(&lines);
    });
}
