//! `status --watch`

use std::{fs::File, process::Stdio};

use rustix::{
    process::Signal,
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;

use crate::support::{Place, Running, Seen, lines, terminal};

const WATCH: [&str; 3] = ["status", "--watch", "100ms"];

fn enqueue(place: &Place, count: usize) {
    let input = lines("t", count);
    place
        .outbox_with(&["enqueue", "--stdin"], input.as_bytes())
        .success();
}

#[test]
fn a_pipe_gets_a_block_a_look_until_a_signal() {
    let place = Place::migrated();
    for signal in [Signal::INT, Signal::TERM] {
        let mut watch = Running::start(place.command(&WATCH));
        let seen = Seen::read(watch.take_stdout());
        seen.wait_for("three looks", |text| text.matches("pending ").count() >= 3);
        watch.signal(signal);
        assert_eq!(watch.end(), (Some(0), String::new()));
        let text = seen.text();
        assert!(!text.contains('\u{1b}'), "a pipe gets no escapes: {text:?}");
    }
}

#[test]
fn a_pipe_is_told_once_of_a_failure_that_goes_on() {
    let place = Place::migrated();
    let mut watch = Running::start(place.command(&WATCH));
    let seen = Seen::read(watch.take_stdout());
    // This one counts the looks.
    let (outside, inside) = terminal();
    let mut beside = place.command(&WATCH);
    beside.env("TERM", "xterm").stdout(Stdio::from(inside));
    let beside = Running::start_as_it_is(beside);
    let looks = Seen::read(File::from(outside));
    seen.wait_for("a state", |text| text.contains("pending "));
    looks.wait_for("a state", |text| text.contains("pending "));

    place.let_in(false);
    looks.wait_for("the failure", |text| text.contains(", 8 looks"));
    seen.wait_for("the failure", |text| text.contains("error: inspect"));
    let failing = seen.text().len();
    place.let_in(true);
    seen.wait_for("the state after it", |text| {
        text[failing..].contains("pending ")
    });
    for running in [watch, beside] {
        running.signal(Signal::TERM);
        assert_eq!(running.end(), (Some(0), String::new()));
    }
    let text = seen.text();
    let failures = text.lines().filter(|line| line.starts_with("error: "));
    let kinds: Vec<_> = failures.map(|line| line.split(": ").nth(2)).collect();
    let mut folded = kinds.clone();
    folded.dedup();
    assert_eq!(kinds, folded, "{text}");
}

#[test]
fn json_is_one_object_a_line_and_a_failure_is_one_line_until_the_store_answers() {
    let place = Place::migrated();
    let mut watch = Running::start(place.command(&[&WATCH[..], &["--json"]].concat()));
    let seen = Seen::read(watch.take_stdout());
    let objects = |text: &str| -> Vec<Value> {
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    };
    let pending = |text: &str, count: u64| {
        let objects = objects(text);
        objects
            .last()
            .is_some_and(|last| last["pending"]["value"] == count)
    };
    seen.wait_for("the first state", |text| pending(text, 0));
    enqueue(&place, 3);
    seen.wait_for("the new state", |text| pending(text, 3));

    place.let_in(false);
    seen.wait_for("the failure", |text| {
        objects(text)
            .iter()
            .any(|object| object["error"].is_string())
    });
    place.let_in(true);
    seen.wait_for("the state after it", |text| pending(text, 3));
    watch.signal(Signal::TERM);
    assert_eq!(watch.end(), (Some(0), String::new()));
    let all = objects(&seen.text());
    let kinds: Vec<_> = all
        .iter()
        .filter_map(|object| object["error_kind"].as_str())
        .collect();
    let mut folded = kinds.clone();
    folded.dedup();
    assert_eq!(kinds, folded, "a failure that goes on is told once");
    assert!(all.iter().all(|object| object["at"].is_string()));
}

#[test]
fn a_terminal_is_redrawn_in_place_and_keeps_the_last_state_while_the_store_fails() {
    let place = Place::migrated();
    enqueue(&place, 7);
    let (outside, inside) = terminal();
    let mut command = place.command(&WATCH);
    command.env("TERM", "xterm").stdout(Stdio::from(inside));
    let watch = Running::start_as_it_is(command);
    let seen = Seen::read(File::from(outside));
    // Up by the six lines that stand there, and away with them.
    let again = "\u{1b}[6A\r\u{1b}[0J";
    seen.wait_for("the second look", |text| text.contains(again));
    assert!(seen.text().contains("pending    7"), "{:?}", seen.text());

    place.let_in(false);
    // By then it was redrawn several times with the same failure.
    seen.wait_for("the failure", |text| text.contains(", 3 looks"));
    place.let_in(true);
    let text = seen.text();
    let (_, failing) = text.split_once("1 looks").unwrap();
    for part in ["error: inspect", "before that:", "pending    7"] {
        assert!(failing.contains(part), "no {part:?} in {failing:?}");
    }
    let failing = text.len();
    seen.wait_for("the state after it", |text| {
        text[failing..].contains("Ctrl-C ends\r\n")
    });
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), (Some(0), String::new()));
}

/// A line that wraps, or one that scrolls out, could not be drawn over.
#[test]
fn a_small_terminal_is_not_overfilled() {
    const SIZE: Winsize = Winsize {
        ws_row: 4,
        ws_col: 20,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let place = Place::migrated();
    let (outside, inside) = terminal();
    tcsetwinsize(&inside, SIZE).unwrap();
    let mut command = place.command(&WATCH);
    command.env("TERM", "xterm").stdout(Stdio::from(inside));
    let watch = Running::start_as_it_is(command);
    let seen = Seen::read(File::from(outside));
    let again = "\u{1b}[3A\r\u{1b}[0J";
    seen.wait_for("three looks", |text| text.matches(again).count() >= 3);
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), (Some(0), String::new()));
    let text = seen.text();
    for screen in text.split(again).skip(1) {
        let lines: Vec<_> = screen.lines().collect();
        assert_eq!(lines.len(), 3, "{screen:?}");
        let widest = lines.iter().map(|line| line.chars().count()).max();
        assert!(widest < Some(SIZE.ws_col.into()), "{screen:?}");
    }
}

#[test]
fn nobody_who_reads_is_a_quiet_end() {
    let place = Place::migrated();
    let mut watch = Running::start(place.command(&WATCH));
    drop(watch.take_stdout());
    assert_eq!(watch.end(), (Some(0), String::new()));
}

#[test]
fn what_waiting_cannot_mend_ends_the_first_look() {
    let empty = Place::empty();
    empty.outbox(&WATCH).failure(5, &["outbox migrate"]);
    let ended = empty.outbox(&["status", "--watch", "1ms"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("100ms"), "{ended:?}");
}
