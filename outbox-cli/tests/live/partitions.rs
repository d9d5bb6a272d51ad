//! `store.partitions`: what `migrate`, `relay --check` and a relay tell of it.

use std::process::Command;

use crate::support::{Ended, Place, Running, redis_url, run, wait};

/// The program with this setting.
fn with(place: &Place, partitions: &str, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command
        .env("OUTBOX__STORE__PARTITIONS", partitions)
        .env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", redis_url());
    command
}

fn ended(place: &Place, partitions: &str, arguments: &[&str]) -> Ended {
    run(with(place, partitions, arguments), b"")
}

#[test]
fn migrate_tells_of_a_conversion_before_and_after() {
    let place = Place::migrated();
    let checked = ended(&place, "daily", &["migrate", "--check"]);
    checked.failure(
        5,
        &[
            "table is plain and empty",
            "value=daily",
            "run `outbox migrate`",
        ],
    );

    place.sql("CREATE VIEW looks AS SELECT FROM outbox.queue");
    for (arguments, code) in [(&["migrate", "--check"][..], 5), (&["migrate"], 2)] {
        let parts = ["in_the_way=view looks", "migrate again"];
        ended(&place, "daily", arguments).failure(code, &parts);
    }
    place.sql("DROP VIEW looks");

    let told = ended(&place, "daily", &["migrate"]).success();
    assert_eq!(
        told,
        "the schema is at version 2\nmade the empty table one of daily partitions\n"
    );
    let told = ended(&place, "daily", &["migrate"]).success();
    assert_eq!(told, "nothing to do: the schema is at version 2\n");
    let told = ended(&place, "daily", &["migrate", "--check"]).success();
    assert_eq!(told, "the schema is of this program's version\n");

    // It changes no partitions, and says so.
    let other = ended(&place, "monthly", &["migrate"]);
    assert_eq!(other.code, Some(2), "{other:?}");
    assert_eq!(other.stdout, "nothing to do: the schema is at version 2\n");
    assert!(
        other.stderr.contains("value=monthly, table=daily"),
        "{other:?}"
    );
    ended(&place, "none", &["migrate", "--check"]).failure(2, &["value=none, table=daily"]);
    // Nobody must write down what is so.
    place.outbox(&["migrate"]).success();
    place.outbox(&["migrate", "--check"]).success();
}

#[test]
fn migrate_tells_of_partitions_in_a_new_schema() {
    let place = Place::empty();
    let told = ended(&place, "monthly", &["migrate"]).success();
    assert_eq!(
        told,
        "made the schema at version 2\nmade the empty table one of monthly partitions\n"
    );
}

#[test]
fn a_relay_tells_once_that_the_table_is_not_as_the_setting_says() {
    let place = Place::migrated();
    place.sql("INSERT INTO outbox.queue (topic, event_type, status) VALUES ('t', 'T', 'done')");
    tells_once(
        &place,
        "daily",
        5,
        &["holds rows", "value=daily", "table=none"],
    );
    agrees(&place, "none");
    place.sql("DELETE FROM outbox.queue");
    ended(&place, "daily", &["migrate"]).success();
    for other in ["none", "monthly"] {
        let parts = [
            &format!("value={other}"),
            "table=daily",
            "leave the setting out",
        ];
        tells_once(&place, other, 2, &parts);
    }
    agrees(&place, "daily");
    // Without the setting.
    let relay = place.relay(&[]);
    relay.wait_for_log("relay started");
    assert_eq!(relay.stop().matches(NOT_SO).count(), 0);
}

const NOT_SO: &str = "the store is not as its settings say";

/// The check fails with one finding of the store's settings, the relay works and writes one line.
#[track_caller]
fn tells_once(place: &Place, partitions: &str, code: i32, parts: &[&str]) {
    let checked = ended(place, partitions, &["relay", "--check"]);
    assert_eq!(checked.code, Some(code), "{checked:?}");
    let wrong: Vec<_> = checked
        .stdout
        .lines()
        .filter(|line| line.starts_with("wrong"))
        .collect();
    let [finding] = wrong[..] else {
        panic!("not one finding: {checked:?}")
    };
    assert!(
        finding.starts_with("wrong  settings of the store: "),
        "{finding}"
    );
    let log = relayed(place, partitions);
    let told: Vec<_> = log
        .lines()
        .filter(|line| line.contains("partitions"))
        .collect();
    let [line] = told[..] else {
        panic!("not one line: {log}")
    };
    assert!(line.contains("WARN") && line.contains(NOT_SO), "{line}");
    for part in parts {
        assert!(finding.contains(part), "no {part:?} in {finding}");
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}

#[track_caller]
fn agrees(place: &Place, partitions: &str) {
    let checked = ended(place, partitions, &["relay", "--check"]).success();
    assert!(
        checked.contains("ok     settings of the store\n"),
        "{checked}"
    );
    assert!(!relayed(place, partitions).contains("partitions"));
}

/// The log of a relay that has cleaned several times.
#[track_caller]
fn relayed(place: &Place, partitions: &str) -> String {
    let mut command = with(place, partitions, &["relay", "--http", "127.0.0.1:0"]);
    command.env("OUTBOX__RELAY__CLEAN_INTERVAL", "20ms");
    let relay = Running::start(command);
    relay.wait_for_log("relay started");
    wait("several rounds of cleaning", || {
        let (_, metrics) = relay.get("/metrics");
        let rounds = metrics.lines().find_map(|line| {
            line.strip_prefix("outbox_clean_seconds_count{store=\"postgres-queue\"} ")
        });
        rounds.is_some_and(|rounds| rounds.parse::<u32>().unwrap() >= 3)
    });
    relay.stop()
}
