//! What operators see and do on a file, and what the settings of a store mean there.

use std::{process::Stdio, time::Duration};

use outbox_testkit::{block_on, eventually, program::Program};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::Place;

const PATIENCE: Duration = Duration::from_secs(30);

/// Two topics, two keys, two kinds, two of which hold their key.
const DEAD: &str = "INSERT INTO outbox_queue
        (topic, key, event_type, error_kind, error, status, dead_reason, blocks, route, attempts, payload, processed_at)
    VALUES ('t1', 'a', 'T', 'refused', 'no', 'failed', 'rejected', 1, 'default', 7, '{\"n\":1}', 1),
        ('t1', 'b', 'T', 'refused', 'no', 'failed', 'rejected', 0, 'default', 7, '{\"n\":2}', 1),
        ('t2', 'c', 'T', 'too_large', 'no', 'failed', 'rejected', 1, 'default', 7, '{\"n\":3}', 1),
        ('t2', 'd', 'U', 'too_large', 'no', 'failed', 'rejected', 0, 'default', 7, '{\"n\":4}', unixepoch() * 1000);
    INSERT INTO outbox_queue (topic, key, event_type, status, parked, blocks, route, payload)
    VALUES ('t1', 'a', 'T', 'pending', 'held', 1, 'default', '{\"n\":5}'),
        ('t2', 'c', 'T', 'pending', 'held', 1, 'default', '{\"n\":6}');";

fn with_dead() -> Place {
    let place = Place::migrated();
    place.sql(DEAD);
    place
}

/// The keys of the dead letters, in the order of the list.
fn keys(place: &Place, flags: &[&str]) -> Vec<String> {
    let lines = place.run(&[&["dead", "list", "--json"], flags].concat());
    let lines = lines.lines();
    let letters = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    letters
        .map(|letter| letter["key"].as_str().unwrap().to_owned())
        .collect()
}

/// Numbers of what was published, when there are so many.
fn publish(place: &Place, count: usize) -> Vec<u64> {
    let mut relay = place.relay("30s");
    let all = block_on(eventually(PATIENCE, async || {
        let done = place.published().len() >= count && place.count("pending") == 0;
        (done && place.count("in_flight") == 0).then_some(())
    }));
    all.unwrap_or_else(|| panic!("{:?}: {}", place.published(), place.status()));
    stop(&mut relay);
    let published = place.published();
    let numbers = published.iter().map(|line| line["payload"]["n"].as_u64());
    numbers.map(Option::unwrap).collect()
}

fn stop(relay: &mut Program) {
    relay.signal(Signal::TERM);
    assert!(relay.wait().success(), "{:?}", relay.log());
}

#[test]
fn dead_letters_are_selected_by_each_filter_and_by_pages() {
    let place = with_dead();
    for (flags, expected) in [
        (&[][..], &["a", "b", "c", "d"][..]),
        (&["--topic", "t1"], &["a", "b"]),
        (&["--key", "c"], &["c"]),
        (&["--type", "U"], &["d"]),
        (&["--kind", "too_large"], &["c", "d"]),
        (&["--older-than", "1h"], &["a", "b", "c"]),
        (&["--limit", "2"], &["a", "b"]),
        (&["--after", "2", "--limit", "1"], &["c"]),
        (&["--topic", "t2", "--type", "T"], &["c"]),
    ] {
        assert_eq!(keys(&place, flags), expected, "{flags:?}");
    }
    let plan = place.run(&["dead", "discard", "--topic", "t2", "--dry-run"]);
    assert!(plan.starts_with("2 would be discarded\n"), "{plan}");
    assert_eq!(place.count("dead"), 4, "a dry run changed something");
}

/// A head that held its key goes before its followers, with attempts that begin anew.
#[test]
fn requeued_letters_start_anew_and_keep_the_order_of_their_key() {
    let place = with_dead();
    let said = place.run(&["dead", "requeue", "--topic", "t1"]);
    assert_eq!(said, "2 requeued\n");
    let attempts = "SELECT max(attempts) FROM outbox_queue WHERE topic = 't1'";
    assert_eq!(place.number(attempts), 0);
    let mut numbers = publish(&place, 3);
    let place_of = |n| numbers.iter().position(|of| *of == n);
    assert!(place_of(1) < place_of(5), "{numbers:?}");
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 5], "those of the other topic wait");
    assert_eq!((place.count("dead"), place.count("held")), (2, 1));
}

/// What was held behind a discarded letter flows.
#[test]
fn discarded_letters_are_gone_and_free_their_keys() {
    let place = with_dead();
    let said = place.run(&["dead", "discard", "--kind", "too_large", "--yes"]);
    assert_eq!(said, "2 discarded\n");
    assert_eq!(keys(&place, &[]), ["a", "b"]);
    assert_eq!(publish(&place, 1), [6]);
    assert_eq!(place.number("SELECT count(*) FROM outbox_queue"), 4);
}

#[test]
fn status_tells_ages_due_times_and_what_fails() {
    let place = Place::migrated();
    place.sql(
        "INSERT INTO outbox_queue (topic, event_type, created_at) VALUES ('t', 'T', (unixepoch() - 90) * 1000);
        INSERT INTO outbox_queue (topic, event_type, next_attempt_at, parked, last_failed_at, error_kind, error)
        VALUES ('bad', 'T', (unixepoch() + 3600) * 1000, 'retry', 1, 'refused', 'not today'),
            ('t', 'T', (unixepoch() + 3600) * 1000, 'scheduled', NULL, NULL, NULL);",
    );
    let status = place.status();
    let oldest = status["oldest_pending_seconds"].as_f64().unwrap();
    assert!((89.0..150.0).contains(&oldest), "{status}");
    assert_eq!((place.count("pending"), place.count("scheduled")), (1, 2));
    let [failing] = &status["failing"].as_array().unwrap()[..] else {
        panic!("{status}")
    };
    assert_eq!(failing["topic"], "bad");
    assert_eq!(failing["waiting"]["value"], 1);
    assert_eq!(failing["error"], "not today");
    let left = failing["retry_in_seconds"].as_f64().unwrap();
    assert!((3500.0..=3601.0).contains(&left), "{status}");
}

#[test]
fn what_enqueue_is_told_is_in_the_row() {
    let place = Place::migrated();
    let event = ["enqueue", "--topic", "t", "--type", "T", "--payload", "{}"];
    let enqueue = |flags: &[&str]| place.run(&[&event[..], flags].concat());
    enqueue(&["--header", "h=1", "--deliver-after", "1h"]);
    assert_eq!((place.count("scheduled"), place.count("pending")), (1, 0));
    assert_eq!(
        place.text("SELECT headers FROM outbox_queue"),
        r#"[["h","1"]]"#
    );
    assert!(!enqueue(&["--dedup-key", "d"]).is_empty());
    assert_eq!(enqueue(&["--dedup-key", "d"]), "", "it was written twice");
    assert_eq!(place.number("SELECT count(*) FROM outbox_queue"), 2);
}

/// A file of a newer program is refused by whatever would write, and what `migrate --print` gives makes
/// the same file.
#[test]
fn versions_are_fenced_and_printed() {
    let place = Place::new();
    let sql = place.run(&["migrate", "--print"]);
    std::fs::write(place.path("outbox.db"), "").unwrap();
    place.sql(sql.leak());
    assert!(place.run(&["migrate"]).contains("nothing to do"));
    place.run(&["migrate", "--check"]);
    place.sql("INSERT INTO outbox_migration (version, name) VALUES (99, 'future')");
    for command in [
        &["migrate"][..],
        &["migrate", "--check"],
        &["relay", "--publisher", "stdout"],
        &["purge", "--yes"],
    ] {
        let said = place.refused(command);
        assert!(said.contains("schema_newer"), "{command:?}: {said}");
    }
}

#[test]
fn purge_removes_what_is_old_and_nothing_else() {
    let place = Place::migrated();
    place.sql(
        "INSERT INTO outbox_queue (topic, event_type, status, processed_at)
        VALUES ('t', 'T', 'done', 1), ('t', 'T', 'done', 1), ('t', 'T', 'done', unixepoch() * 1000),
            ('t', 'T', 'failed', 1), ('t', 'T', 'pending', NULL);
        INSERT INTO outbox_dedup VALUES ('old', 'e', 1), ('new', 'e', unixepoch() * 1000);",
    );
    let plan = place.run(&["purge", "--dry-run"]);
    let told = "2 delivered events and 1 dedup keys";
    assert_eq!(plan, format!("{told} would be removed\n"));
    assert_eq!(place.number("SELECT count(*) FROM outbox_queue"), 5);
    assert_eq!(place.run(&["purge", "--yes"]), format!("{told} removed\n"));
    let left =
        "SELECT group_concat(status, ' ') FROM (SELECT status FROM outbox_queue ORDER BY id)";
    assert_eq!(place.text(left), "done failed pending");
    assert_eq!(place.text("SELECT dedup_key FROM outbox_dedup"), "new");
}

/// The settings that a file shares with other databases, by what they do.
#[test]
fn settings_of_the_store_are_heeded() {
    let place = Place::migrated();
    for key in ["a", "b"] {
        place.run(&[
            "enqueue",
            "--topic",
            "t",
            "--type",
            "T",
            "--key",
            key,
            "--payload",
            "{\"n\":1}",
        ]);
    }
    let mut command = place.relay_command("7s");
    command
        .env("OUTBOX__STORE__KEEP_DONE", "false")
        .env("OUTBOX__STORE__WORKERS", "3");
    let mut relay = place.start(command);
    let held = block_on(eventually(PATIENCE, async || {
        let status = place.status();
        let lanes = status["lanes"].as_array().unwrap().clone();
        (place.published().len() == 2 && place.count("in_flight") == 0).then_some(lanes)
    }));
    let lanes = held.expect("both are published");
    assert_eq!(lanes.len(), 3);
    for lane in &lanes {
        let left = lane["lease_left_seconds"].as_f64().unwrap();
        assert!((0.0..=7.0).contains(&left), "{lane}");
    }
    stop(&mut relay);
    assert_eq!(place.number("SELECT count(*) FROM outbox_queue"), 0);
}

/// A writer that keeps the file for itself is waited for as long as the setting says.
#[test]
fn the_statement_timeout_bounds_the_wait_for_another_writer() {
    let place = Place::migrated();
    let _writing = place.lock();
    let event = ["enqueue", "--topic", "t", "--type", "T", "--payload", "{}"];
    let mut command = place.command(&event);
    command
        .env("OUTBOX__STORE__STATEMENT_TIMEOUT", "100ms")
        .stdin(Stdio::null());
    let started = std::time::Instant::now();
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("timeout"),
        "{said}"
    );
    // The default is 5 s.
    assert!(started.elapsed() < Duration::from_secs(4), "{said}");
}

/// A relay whose file is replaced under it writes nothing into the one that has no name any more.
#[test]
fn a_relay_tells_that_its_file_was_replaced() {
    let place = Place::migrated();
    let relay = place.relay("30s");
    let event = [
        "enqueue",
        "--topic",
        "t",
        "--type",
        "T",
        "--payload",
        "{\"n\":1}",
    ];
    place.run(&event);
    let first = block_on(eventually(PATIENCE, async || {
        (place.published().len() == 1).then_some(())
    }));
    first.expect("it works");
    for name in ["outbox.db", "outbox.db-wal", "outbox.db-shm"] {
        // The log may be gone with its last connection.
        let _ = std::fs::rename(place.path(name), place.path(&format!("old-{name}")));
    }
    place.run(&["migrate"]);
    let told = block_on(eventually(PATIENCE, async || {
        relay.logged("store failed").then_some(())
    }));
    told.unwrap_or_else(|| panic!("{:?}", relay.log()));
    assert!(relay.logged("restart"), "{:?}", relay.log());
}
