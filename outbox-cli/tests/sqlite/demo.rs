//! `outbox demo`: its story, and that it leaves nothing behind.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use outbox_testkit::{block_on, eventually, program::Program};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::Place;

/// The user whom every system has and nothing belongs to.
const NOBODY: u32 = 65534;

/// What is promised to whoever runs it first.
const TIME_MAX: Duration = Duration::from_secs(15);

/// A temporary folder of the demo's own, so that what is left behind is seen.
struct Temporary(TempDir);

impl Temporary {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// The demo, among settings and files that would end every other command.
    fn demo(&self, place: &Place, arguments: &[&str]) -> Command {
        std::fs::write(place.path("outbox.toml"), "nonsense").unwrap();
        let mut command = place.command(&["demo"]);
        command
            .args(arguments)
            .env("TMPDIR", self.path())
            .env("OUTBOX_CONFIG", place.path("outbox.toml"))
            .env("OUTBOX__STORE__KIND", "nonsense")
            .env("OUTBOX__NONSENSE", "1")
            .stdin(Stdio::null());
        command
    }

    fn assert_empty(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path()).unwrap().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// What it printed; it must succeed and have nothing to complain about.
fn told(output: Output) -> String {
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// These lines come in this order, among others.
fn assert_in_order(text: &str, lines: &[&str]) {
    let mut rest = text;
    for line in lines {
        let (_, behind) = rest
            .split_once(line)
            .unwrap_or_else(|| panic!("{line:?} is not there, or comes too early: {text}"));
        rest = behind;
    }
}

/// The words without those that differ from run to run: ids, times and the name of the folder.
fn timeless(text: &str) -> Vec<&str> {
    let varies = |word: &str| {
        let number = word.trim_end_matches(['m', 's']);
        let is_span = word.ends_with('s') && number.parse::<u32>().is_ok();
        let is_id_or_time = word.contains('-') && word.len() >= 20;
        is_span || is_id_or_time || word.contains("outbox-demo-")
    };
    let words = text.split_whitespace();
    words.filter(|word| !varies(word)).collect()
}

const STORY: [&str; 46] = [
    "1. Orders are written, each with its event in the same transaction\n",
    "committed order  1 of ada, total 30\n",
    "committed order  6 of ada, total 15\n",
    "counted   6 orders in their table, 6 events in the outbox\n",
    "2. An order is rolled back\n",
    "undone    order  7 of linus\n",
    "counted   6 orders in their table, 6 events in the outbox\n",
    "3. The relay starts\n",
    "received  order  1 of ada\n",
    "received  order  2 of grace\n",
    "received  order  4 of linus\n",
    "received  order  3 of ada\n",
    "received  order  5 of grace\n",
    "received  order  6 of ada\n",
    "4. An answer gets lost, and the event comes twice\n",
    "received  order  8 of linus\n",
    "(lost)    the answer to the relay\n",
    "dropped   order  8 of linus: a copy",
    "5. A poisoned event: the consumer fails on it\n",
    "failed    order  9 of ada: attempt 1\n",
    "received  order 11 of grace\n",
    "received  order 13 of linus\n",
    "failed    order  9 of ada: attempt 2, ",
    " later\n",
    "failed    order  9 of ada: attempt 3, ",
    " later\n",
    "6. It is a dead letter now, and its key is on hold\n",
    "id  ",
    "orders  OrderPlaced  ada  3 ",
    "attempts_exhausted  handle order: refused: division by zero: the total is 0\n",
    "status    1 dead, 2 held behind it, keys on hold: 1\n",
    "7. The consumer is repaired, and the dead letter put back\n",
    "requeued  1 dead letter\n",
    "received  order  9 of ada\n",
    "received  order 10 of ada\n",
    "received  order 12 of ada\n",
    "8. What was received is compared with what was committed\n",
    "checked   ",
    "12 orders committed, ",
    "12 handled, ",
    "copies dropped: 1, ",
    "of order 7 nothing\n",
    "Nothing lost, nothing invented.\n",
    "The file is removed.",
    " demo --keep",
    "\n",
];

#[test]
fn the_story_is_told_in_order_and_the_same_each_time() {
    let place = Place::new();
    let temporary = Temporary::new();
    let started = Instant::now();
    let first = told(temporary.demo(&place, &[]).output().unwrap());
    assert!(started.elapsed() < TIME_MAX, "{:?}", started.elapsed());
    temporary.assert_empty();
    assert_in_order(&first, &STORY);
    assert!(!first.contains('\u{1b}'), "colours in a pipe: {first}");
    // Once before it is dead, and once when its key is free.
    for (order, times) in [(" 1", 1), (" 9", 1), ("10", 1), ("12", 1), (" 7", 0)] {
        let line = format!("received  order {order} of");
        assert_eq!(first.matches(&line).count(), times, "{line}: {first}");
    }

    let second = told(temporary.demo(&place, &[]).output().unwrap());
    assert_eq!(timeless(&second), timeless(&first));
    temporary.assert_empty();
}

#[test]
fn two_at_once_do_not_disturb_each_other() {
    let place = Place::new();
    let temporary = Temporary::new();
    let start = || {
        let mut command = temporary.demo(&place, &[]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let both = [start(), start()];
    for child in both {
        let text = told(child.wait_with_output().unwrap());
        assert_in_order(&text, &STORY);
    }
    temporary.assert_empty();
}

/// An ordinary user in a folder that this user may not write.
#[test]
fn a_folder_that_can_not_be_written_is_no_obstacle() {
    let place = Place::new();
    let temporary = Temporary::new();
    let program = tempfile::tempdir().unwrap();
    let command = temporary.demo(&place, &[]);
    let mut command = as_nobody(command, program.path());
    all_may(temporary.path(), 0o777);
    all_may(&place.path("."), 0o555);
    let text = told(command.output().unwrap());
    temporary.assert_empty();
    assert!(text.contains("Nothing lost"), "{text}");

    // Now the temporary folder too.
    all_may(temporary.path(), 0o555);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("set TMPDIR to a folder that can be written")
            && said.contains("Permission denied"),
        "{said}"
    );
    assert!(output.stdout.is_empty());
}

/// Root may write everywhere; whoever else runs the tests is ordinary already. The program is copied to
/// where every user gets at it.
fn as_nobody(command: Command, folder: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return command;
    }
    all_may(folder, 0o755);
    let program = folder.join("outbox");
    std::fs::copy(command.get_program(), &program).unwrap();
    let mut copy = Command::new(program);
    copy.args(command.get_args())
        .current_dir(command.get_current_dir().unwrap())
        .stdin(Stdio::null())
        .uid(NOBODY)
        .gid(NOBODY);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    copy
}

fn all_may(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_reader_that_has_read_enough_ends_it_in_peace() {
    let place = Place::new();
    let temporary = Temporary::new();
    let mut command = temporary.demo(&place, &[]);
    command.stdout(Stdio::piped());
    let mut demo = Program::start(command);
    let mut line = String::new();
    let mut stdout = BufReader::new(demo.take_stdout().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("A service writes orders"), "{line}");
    drop(stdout);
    let status = demo.wait();
    assert_eq!((status.code(), demo.log()), (Some(0), vec![]));
    temporary.assert_empty();
}

#[test]
fn a_signal_ends_it_at_once_and_removes_the_file() {
    let place = Place::new();
    let temporary = Temporary::new();
    let kept = place.path("kept.db");
    for (signal, arguments, until) in [
        (Signal::INT, &[][..], "A service writes orders"),
        (Signal::INT, &[], "4. An answer gets lost"),
        (Signal::TERM, &["--keep", "kept.db"], "5. A poisoned event"),
        (Signal::HUP, &["--keep"], "3. The relay starts"),
    ] {
        let mut command = temporary.demo(&place, arguments);
        command.stdout(Stdio::piped());
        let mut demo = Program::start(command);
        let mut stdout = BufReader::new(demo.take_stdout().unwrap());
        let mut line = String::new();
        while !line.contains(until) {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "no {until}");
        }
        let sent = Instant::now();
        demo.signal(signal);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let status = demo.wait();
        assert_eq!(status.code(), Some(130), "{:?}", demo.log());
        assert!(sent.elapsed() < Duration::from_secs(2), "{until}");
        assert!(!rest.contains("8. What"), "it went on: {rest}");
        assert!(demo.logged("stopped before its end; its file is removed"));
        temporary.assert_empty();
        assert!(!kept.exists());
    }
}

/// What the printed commands are run by.
fn shell(place: &Place, line: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("exec {line}")])
        .current_dir(place.path("."))
        .env_remove("OUTBOX__STORE__URL")
        .stdin(Stdio::null());
    command
}

/// A kept file has a dead letter, and the commands that are printed show it and put it back.
#[test]
fn the_commands_for_a_kept_file_work_as_they_are_printed() {
    block_on(async {
        let place = Place::new();
        let temporary = Temporary::new();
        // A name that a shell would take apart.
        let name = "it's mine.db";
        let text = told(temporary.demo(&place, &["--keep", name]).output().unwrap());
        temporary.assert_empty();
        assert_in_order(
            &text,
            &["9. One more", "rejected  order 14 of grace", "Next:\n"],
        );
        let (_, commands) = text.split_once("Next:\n").unwrap();
        let commands: Vec<&str> = commands.lines().filter(|l| l.starts_with("  ")).collect();
        let [status, list, requeue, relay] = commands[..] else {
            panic!("{text}");
        };
        let run = |line| told(shell(&place, line).output().unwrap());
        let said = run(status);
        assert_in_order(&said, &["held       1 ", "1 keys\n", "dead       1 "]);
        let said = run(list);
        assert_in_order(
            &said,
            &["OrderPlaced  grace", "rejected", "refunds are not"],
        );
        assert!(run(requeue).contains('1'));
        let mut relay = place.start(shell(&place, relay));
        let both = eventually(Duration::from_secs(30), async || {
            (place.published().len() == 2).then_some(())
        });
        both.await.expect("the event and its follower come");
        relay.signal(Signal::TERM);
        assert!(relay.wait().success(), "{:?}", relay.log());
        let orders: Vec<Value> = place.published();
        let orders: Vec<&Value> = orders.iter().map(|line| &line["payload"]["id"]).collect();
        assert_eq!(orders, [14, 15]);

        // Never overwritten.
        let before = std::fs::read(place.path(name)).unwrap();
        let output = temporary.demo(&place, &["--keep", name]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("exists already and is not overwritten"),
            "{said}"
        );
        assert_eq!(std::fs::read(place.path(name)).unwrap(), before);
    });
}

#[test]
fn a_file_without_a_name_is_kept_among_the_temporary_ones() {
    let place = Place::new();
    let temporary = Temporary::new();
    let text = told(temporary.demo(&place, &["--keep"]).output().unwrap());
    let (_, url) = text.split_once("--store-url ").unwrap();
    let url = url.split_whitespace().next().unwrap();
    let file = Path::new(url.strip_prefix("sqlite:").unwrap());
    assert!(file.starts_with(temporary.path()) && file.exists());
    let status = place.run(&["status", "--store-url", url]);
    assert!(status.contains("dead       1"), "{status}");
}

#[test]
fn settings_of_a_database_are_refused() {
    let place = Place::new();
    let said = place.refused(&["demo", "--store-url", "sqlite:mine.db"]);
    assert!(said.contains("leave out --store-url"), "{said}");
}
