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

/// One of two processes dies at work: the other goes on with its lanes; nothing is lost, nothing
/// passes an earlier event of its key.
#[test]
fn crash_holds_lock_a_killed_relay_loses_nothing() {
    block_on(async {
        let place = Place::new();
        place.run(&["migrate"]);
        let (mut killed, survivor) = (place.relay("1s"), place.relay("1s"));
        until_started(&[&killed, &survivor]).await;
        write(&place, 0, 500);
        let at_work = eventually(PATIENCE, async || {
            (place.published().len() > 100).then_some(())
        });
        at_work.await.expect("the relays are at work");
        killed.kill();
        write(&place, 500, 500);
        let lines = until_published(&place, 1_000).await;
        stop(survivor);
        assert_order(&lines);
        let status: Value = serde_json::from_str(&place.run(&["status", "--json"])).unwrap();
        for counted in ["pending", "in_flight", "dead"] {
            assert_eq!(status[counted]["value"], 0, "{status}");
        }
    });
}
