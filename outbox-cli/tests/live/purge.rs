//! `outbox purge`, and a relay that removes what it delivered.

use rustix::process::Signal;

use crate::support::{Place, Running, shows_a_bar};

const ALL: &str = "SELECT count(*) FROM outbox.queue";
const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";
const KEYS: &str = "SELECT count(*) FROM outbox.dedup";

/// 5,000 delivered events, the age of half of them two days, two dead and two pending ones of that
/// age, and two dedup keys, one of two months.
fn with_done() -> Place {
    let place = Place::migrated();
    place.sql(
        "INSERT INTO outbox.queue (topic, event_type, status, payload, created_at, processed_at)
         SELECT 't', 'T', 'done', '{}', at, at
         FROM (SELECT now() - CASE WHEN n <= 2500 THEN interval '2 days' ELSE interval '1 hour' END AS at
               FROM generate_series(1, 5000) AS n) AS row;
         INSERT INTO outbox.queue (topic, event_type, status, payload, created_at)
         SELECT 't', 'T', status, '{}', now() - interval '2 days'
         FROM unnest(ARRAY['failed', 'failed', 'pending', 'pending']) AS status;
         INSERT INTO outbox.dedup
         VALUES ('old', gen_random_uuid(), now() - interval '60 days'), ('new', gen_random_uuid(), now());",
    );
    place
}

#[test]
fn purge_removes_what_is_old_as_flags_or_configuration_say() {
    let place = with_done();
    place.outbox(&["purge"]).failure(2, &["--yes"]);
    let told = place.outbox(&["purge", "--dry-run"]).success();
    assert_eq!(
        told,
        "2500 delivered events and 1 dedup keys would be removed\n"
    );
    let all = [
        "purge",
        "--dry-run",
        "--retention",
        "0s",
        "--dedup-retention",
        "0s",
    ];
    let told = place.outbox(&all).success();
    assert_eq!(
        told,
        "5000 delivered events and 2 dedup keys would be removed\n"
    );
    assert_eq!((place.number(ALL), place.number(KEYS)), (5004, 2));

    let ended = place.outbox(&["purge", "--yes"]);
    assert_eq!(ended.stderr, "", "no bar in a pipe");
    assert_eq!(
        ended.success(),
        "2500 delivered events and 1 dedup keys removed\n"
    );
    assert_eq!((place.number(DONE), place.number(KEYS)), (2500, 1));

    let mut by_configuration = place.command(&["purge", "--yes"]);
    by_configuration
        .env("OUTBOX__STORE__RETENTION", "30m")
        .env("OUTBOX__STORE__DEDUP_RETENTION", "0s");
    let told = crate::support::run(by_configuration, b"").success();
    assert_eq!(told, "2500 delivered events and 1 dedup keys removed\n");
    assert_eq!((place.number(ALL), place.number(KEYS)), (4, 0));
}

/// Makes the removal of one row wait while there is a row in `gate`.
fn with_gate(place: &Place, id: u32) {
    place.sql(&format!(
        "CREATE TABLE gate AS SELECT 1;
         CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
             RETURN OLD;
         END $$;
         CREATE TRIGGER gate BEFORE DELETE ON outbox.queue
             FOR EACH ROW WHEN (OLD.id = {id}) EXECUTE FUNCTION wait_at_gate();"
    ));
}

fn wait_at_gate(place: &Place) {
    place.wait_for(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'PgSleep'",
        1,
    );
}

const PURGE: [&str; 4] = ["purge", "--yes", "--retention", "0s"];

#[test]
fn a_signal_ends_purge_after_its_step_and_the_next_run_goes_on() {
    let place = with_done();
    with_gate(&place, 3000);
    let running = Running::start(place.command(&PURGE));
    wait_at_gate(&place);
    assert_eq!(place.number(DONE), 3000, "each step commits by itself");
    running.signal(Signal::INT);
    running.wait_for_log("stopping: the step under way is finished");
    place.sql("DELETE FROM gate");
    let (code, log) = running.end();
    assert_eq!(code, Some(130), "{log}");
    let told = "4000 delivered events and 1 dedup keys were removed — the same command";
    assert!(log.contains(told), "{log}");
    let rest = place.outbox(&PURGE).success();
    assert_eq!(rest, "1000 delivered events and 0 dedup keys removed\n");
}

/// Another cleaner: a person's own purge that stands still, as a relay's would for an instant.
#[test]
fn purge_says_that_another_cleaner_is_at_work_and_takes_its_turn() {
    let place = with_done();
    with_gate(&place, 1);
    let first = Running::start(place.command(&PURGE));
    wait_at_gate(&place);
    let second = Running::start(place.command(&PURGE));
    second.wait_for_log("another cleaner is at work");
    let third = Running::start(place.command(&PURGE));
    third.wait_for_log("another cleaner is at work");
    third.signal(Signal::TERM);
    let (code, log) = third.end();
    assert_eq!(code, Some(130), "{log}");
    assert!(
        log.contains("0 delivered events and 0 dedup keys were removed"),
        "{log}"
    );
    assert_eq!(place.number(DONE), 5000);
    place.sql("DELETE FROM gate");
    for running in [first, second] {
        let (code, log) = running.end();
        assert_eq!(code, Some(0), "{log}");
    }
    assert_eq!(place.number(ALL), 4);
}

#[test]
fn a_terminal_gets_a_bar() {
    let place = with_done();
    let command = place.command(&PURGE);
    shows_a_bar(command, |text| text.contains(" removed, "));
}

/// A relay whose configuration says how long to keep and how often to look.
#[test]
fn a_relay_removes_what_is_delivered_and_old() {
    let place = with_done();
    let topic = place.topic("t");
    place.sql(&format!("UPDATE outbox.queue SET topic = '{topic}'"));
    let file = place.file(
        "outbox.toml",
        "[store]\nretention = \"30m\"\n[relay]\nclean_interval = \"50ms\"",
    );
    let relay = place.relay(&["--config", file.to_str().unwrap()]);
    // But for the two that it delivers itself.
    place.wait_for(DONE, 2);
    place.wait_for(KEYS, 1);
    let (_, metrics) = relay.get("/metrics");
    let counted = "outbox_cleaned_events_total{store=\"postgres-queue\"} 5000";
    assert!(metrics.contains(counted), "{metrics}");
    let log = relay.stop();
    assert!(log.contains("removed what was delivered and old"), "{log}");
    assert_eq!(place.number(ALL), 4);
    assert_eq!(
        place.number("SELECT count(*) FROM outbox.queue WHERE status = 'failed'"),
        2
    );
}

/// By the configuration a migration makes the table one of partitions, and old ones go as a whole.
#[test]
fn partitions_are_made_by_migrate_and_purged_as_a_whole() {
    let place = Place::empty();
    let daily = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("OUTBOX__STORE__PARTITIONS", "daily");
        crate::support::run(command, b"")
    };
    daily(&["migrate"]).success();
    let leaves = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.queue'::regclass";
    assert_eq!(place.number(leaves), 5);
    place.sql(
        "INSERT INTO outbox.queue (topic, event_type, status, created_at, processed_at)
         SELECT 't', 'T', 'pending', now() - interval '5 days', now() - interval '5 days'
         FROM generate_series(1, 7)",
    );
    // The first makes their partition, for they are undone; the second drops it.
    place.outbox(&["purge", "--yes"]).success();
    assert_eq!(place.number(leaves), 6);
    place.sql("UPDATE outbox.queue SET status = 'done'");
    let told = place.outbox(&["purge", "--dry-run"]).success();
    assert_eq!(
        told,
        "7 delivered events and 0 dedup keys would be removed\n"
    );
    let told = place.outbox(&["purge", "--yes"]).success();
    assert_eq!(
        told,
        "0 delivered events and 0 dedup keys, and 1 partitions with their events, removed\n"
    );
    assert_eq!((place.number(leaves), place.number(ALL)), (5, 0));

    let mut misspelt = place.command(&["status"]);
    misspelt.env("OUTBOX__STORE__PARTITIONS", "dayly");
    crate::support::run(misspelt, b"").failure(2, &["OUTBOX__STORE__PARTITIONS", "daily"]);
}
