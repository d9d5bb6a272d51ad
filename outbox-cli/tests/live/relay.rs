//! A relay as a process: signals, pipes, hopeless events.

use std::{
    io::{BufRead, BufReader},
    time::Duration,
};

use rustix::process::Signal;

use crate::support::{Place, Running, arg, lines, stream};

const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";

/// Case shutdown-drops-in-flight: stopped at any moment, it finishes or gives back, at once.
#[test]
fn shutdown_drops_in_flight() {
    const EVENTS: usize = 20_000;
    let place = Place::migrated();
    let topic = place.topic("t");
    place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, EVENTS).as_bytes())
        .success();
    for round in 0..5 {
        let relay = place.relay(&[]);
        relay.wait_for_log("relay started");
        std::thread::sleep(Duration::from_millis(40 * round));
        relay.stop();
        let processing =
            place.number("SELECT count(*) FROM outbox.queue WHERE status = 'processing'");
        assert_eq!(processing, 0, "what was not sent is given back");
        let done = usize::try_from(place.number(DONE)).unwrap();
        assert_eq!(stream(&topic).len(), done, "done is what was acknowledged");
    }
    let relay = place.relay(&[]);
    place.wait_for(DONE, i64::try_from(EVENTS).unwrap());
    relay.stop();
    let mut ids = stream(&topic);
    assert_eq!(ids.len(), EVENTS, "a stop in good order makes no copies");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), EVENTS);
}

/// Case shutdown-drops-in-flight, twice the signal: whoever does not want to wait need not.
#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::migrated();
    let large = format!(
        "{{\"topic\":\"t\",\"type\":\"T\",\"payload_text\":\"{}\"}}\n",
        "x".repeat(200_000)
    );
    place
        .outbox_with(&["enqueue", "--stdin"], large.repeat(10).as_bytes())
        .success();
    // Nobody reads the pipe, so the publish never ends.
    let relay = Running::start(place.command(&["relay", "--publisher", "stdout"]));
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'processing'",
        10,
    );
    relay.signal(Signal::INT);
    relay.wait_for_log("a second signal ends at once");
    relay.signal(Signal::TERM);
    let (code, log) = relay.end();
    assert_eq!(code, Some(130), "{log}");
}

#[test]
fn a_reader_that_goes_away_ends_the_relay_without_loss() {
    let place = Place::migrated();
    place
        .outbox_with(&["enqueue", "--stdin"], lines("t", 5000).as_bytes())
        .success();
    let mut relay = Running::start(place.command(&["relay", "--publisher", "stdout"]));
    let mut reader = BufReader::new(relay.take_stdout());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    drop(reader);
    let (code, log) = relay.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(!log.contains("panic"), "{log}");
    assert!(
        log.lines()
            .last()
            .unwrap()
            .contains("standard output has closed it"),
        "{log}"
    );
    assert_eq!(
        place.number("SELECT count(*) FROM outbox.queue WHERE status = 'processing'"),
        0
    );
    let rest = place.number("SELECT count(*) FROM outbox.queue WHERE status = 'pending'");
    assert!(rest > 0, "what nobody took is still there");
}

#[test]
fn a_list_cut_by_its_reader_is_no_failure() {
    let place = Place::empty();
    let mut command = place.command(&["migrate", "--print"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

/// Case unsendable-hot-loop: hopeless events cost one attempt each and nothing after that.
#[test]
fn unsendable_hot_loop() {
    let place = Place::migrated();
    let topic = place.topic("t");
    // The first is refused by its size, and a stream of the second's name can't exist.
    let taken = place.topic("taken");
    let _: () = redis::Commands::set(&mut crate::support::redis(), &taken, "a string").unwrap();
    let first = format!(
        "{{\"topic\":\"{topic}\",\"type\":\"T\",\"payload_text\":\"{}\"}}\n{{\"topic\":\"{taken}\",\"type\":\"T\",\"payload\":1}}\n",
        "x".repeat(200)
    );
    place
        .outbox_with(
            &["enqueue", "--stdin"],
            (first + &lines(&topic, 1000)).as_bytes(),
        )
        .success();
    let tight = place.file(
        "tight.toml",
        "[routes.default.publisher]\nkind = \"redis\"\nfield_bytes_max = 100\n",
    );
    let relay = place.relay(&["--config", arg(&tight)]);
    place.wait_for(DONE, 1000);
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'failed'",
        1,
    );
    let before = (relay.processor_time(), relay.log().lines().count());
    std::thread::sleep(Duration::from_secs(2));
    let (busy, lines) = (
        relay.processor_time().saturating_sub(before.0),
        relay.log().lines().count() - before.1,
    );
    assert!(
        busy < Duration::from_millis(600),
        "{busy:?} of work in two seconds of idleness"
    );
    assert!(lines < 20, "{lines} lines in two seconds: {}", relay.log());
    relay.stop();
    // The topic is at fault, not the event: it waits without burning attempts.
    let waiting = format!(
        "SELECT count(*) FROM outbox.queue WHERE topic = '{taken}' AND status = 'pending' AND attempts = 0"
    );
    assert_eq!(place.number(&waiting), 1);
    assert_eq!(
        place.number("SELECT max(attempts)::bigint FROM outbox.queue WHERE status = 'failed'"),
        1
    );
}
