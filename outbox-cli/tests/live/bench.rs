//! `outbox bench`

use std::{collections::BTreeSet, net::SocketAddr};

use outbox_testkit::proxy::{Direction, FaultProxy};
use redis::Commands;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    Ended, Place, Running, Seen, arg, entries, field, redis, redis_url, run, shows_a_bar,
};

const ALL: &str = "SELECT count(*) FROM outbox.queue";
const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";
/// As if nobody had ever touched them.
const UNTOUCHED: &str = "SELECT count(*) FROM outbox.queue
    WHERE status = 'pending' AND attempts = 0 AND crashes = 0 AND lease_token IS NULL";

/// A run to the test's Redis, on a topic of the test's own.
struct Bench {
    place: Place,
    topic: String,
}

impl Bench {
    fn new() -> Self {
        let place = Place::migrated();
        let topic = place.topic("bench");
        Self { place, topic }
    }

    fn command(&self, broker: &str, arguments: &[&str]) -> std::process::Command {
        let all = ["bench", "--yes", "--topic", &self.topic];
        let mut command = self.place.command(&[&all[..], arguments].concat());
        command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", broker);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        run(self.command(&redis_url(), arguments), b"")
    }

    fn start(&self, broker: &str, arguments: &[&str]) -> (Running, Seen) {
        let mut running = Running::start(self.command(broker, arguments));
        let seen = Seen::read(running.take_stdout());
        (running, seen)
    }

    /// Makes every write wait until the gate is opened.
    fn shut_gate(&self) {
        self.place.sql(
            "CREATE TABLE gate AS SELECT 1;
             CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 WHILE EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER gate BEFORE INSERT ON outbox.queue
                 FOR EACH ROW EXECUTE FUNCTION wait_at_gate();",
        );
    }

    fn wait_at_gate(&self, writers: i64) {
        self.place.wait_for(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event = 'PgSleep'",
            writers,
        );
    }

    fn open_gate(&self) {
        self.place.sql("DELETE FROM gate");
    }
}

/// The one object of `--json`.
#[track_caller]
fn object(stdout: &str) -> Value {
    assert_eq!(stdout.lines().count(), 1, "{stdout:?}");
    serde_json::from_str(stdout).unwrap()
}

#[track_caller]
fn rise(percentiles: &Value) {
    let values = ["p50", "p95", "p99", "max"].map(|name| percentiles[name].as_f64().unwrap());
    assert!(values.is_sorted() && values[3] > 0.0, "{percentiles}");
}

#[test]
fn figures_are_of_events_that_were_written_and_delivered() {
    let bench = Bench::new();
    bench.place.sql(
        "INSERT INTO outbox.queue (topic, event_type, payload) VALUES ('other', 'T', '1');
         INSERT INTO outbox.queue (topic, event_type, payload, status, created_at, processed_at)
         VALUES ('other', 'T', '1', 'done', now() - interval '9 days', now() - interval '9 days');",
    );
    let flags = [
        "--events",
        "300",
        "--size",
        "100",
        "--keys",
        "7",
        "--writers",
        "3",
        "--rate",
        "200/s",
        "--json",
    ];
    let mut command = bench.command(&redis_url(), &flags);
    // A relay with this setting would remove the old row at once.
    command.env("OUTBOX__RELAY__CLEAN_INTERVAL", "1ms");
    let ended = run(command, b"");
    assert_eq!(ended.stderr, "", "no bar in a pipe");
    let told = object(&ended.success());
    for (part, name) in [
        ("write", "events"),
        ("drain", "events"),
        ("live", "written"),
        ("live", "events"),
    ] {
        assert_eq!(told[part][name], 300, "{told}");
    }
    for part in ["write", "drain", "live"] {
        assert!(
            told[part]["events_per_second"].as_f64() > Some(0.0),
            "{told}"
        );
    }
    // Each event has its time: the last one begins 1,495 ms after the first, or later.
    let reached = told["live"]["events_per_second"].as_f64();
    assert!(reached < Some(201.0), "{told}");
    rise(&told["write"]["commit_ms"]);
    rise(&told["live"]["commit_to_acknowledged_ms"]);
    let named = [
        &told["store"],
        &told["publisher"],
        &told["route"],
        &told["topic"],
    ];
    assert_eq!(named, ["postgres-queue", "redis", "default", &*bench.topic]);
    assert_eq!(
        (&told["others"], &told["undelivered"]),
        (&Value::from(0), &Value::Null)
    );

    let stream = entries(&bench.topic);
    let different = |name| {
        let values = stream.iter().map(|entry| field(entry, name));
        values.collect::<BTreeSet<_>>().len()
    };
    assert_eq!(stream.len(), 600);
    assert_eq!((different("event-id"), different("key")), (600, 7));
    assert!(
        stream
            .iter()
            .all(|entry| field(entry, "payload").len() == 100)
    );
    assert_eq!(bench.place.number(DONE), 601, "and the old one");
    assert_eq!(bench.place.number(UNTOUCHED), 1, "of the other topic");
}

#[test]
fn people_read_a_table_and_the_default_rate_is_a_tenth_of_what_was_drained() {
    let bench = Bench::new();
    let text = bench.run(&["--events", "200"]).success();
    for part in [
        "events of 256 bytes, 1000 keys",
        "written by 4 writers, a commit each",
        "delivered from the backlog",
        "latency in ms",
        "\ncommit to acknowledged  ",
        "The messages stay in the broker",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let told = object(&bench.run(&["--events", "200", "--json"]).success());
    let drained = told["drain"]["events_per_second"].as_f64().unwrap();
    let asked = told["live"]["asked_events_per_second"].as_f64().unwrap();
    assert!((asked - drained / 10.0).abs() < 1.0, "{told}");
}

#[test]
fn a_file_of_sqlite_is_measured_too() {
    let bench = Bench::new();
    let file = bench.place.file("outbox.db", b"");
    let url = format!("sqlite:{}", arg(&file));
    let on_file = |mut command: std::process::Command| {
        command.env("OUTBOX__STORE__URL", &url);
        run(command, b"")
    };
    on_file(bench.place.command(&["migrate"])).success();
    // By a rate of its own: the tenth of a slow drain would be too few to write all of them.
    let flags = ["--events", "100", "--rate", "100/s", "--json"];
    let told = object(&on_file(bench.command(&redis_url(), &flags)).success());
    assert_eq!(told["store"], "sqlite-queue");
    assert_eq!(
        (&told["drain"]["events"], &told["live"]["events"]),
        (&100.into(), &100.into())
    );
    assert_eq!(entries(&bench.topic).len(), 200);
}

#[test]
fn what_cannot_be_measured_is_told_before_anything_is_written() {
    let bench = Bench::new();
    let place = &bench.place;
    let url = redis_url();
    let without = place.outbox(&["bench", "--publisher-url", &url]);
    without.failure(
        2,
        &["--yes", "up to 20000 events", "`outbox.bench`", "`default`"],
    );

    let routes = "[routes.orders]\ntopics = [\"orders.*\"]\npublisher = { kind = \"redis\", url = \"redis://127.0.0.1:1\" }\n[routes.audit]\ntopics = [\"audit\"]\npublisher = { kind = \"stdout\" }";
    let file = place.file("routes.toml", routes);
    let with_file =
        |topic| place.outbox(&["bench", "--yes", "--config", arg(&file), "--topic", topic]);
    with_file("outbox.bench").failure(2, &["no route takes the topic `outbox.bench`", "--topic"]);
    with_file("audit").failure(2, &["`audit` writes to standard output"]);
    with_file("orders.x").failure(3, &["route=orders"]);
    bench.run(&["--size", "2000000"]).failure(6, &["900000"]);
    for wrong in [
        ["--rate", "0"],
        ["--events", "0"],
        ["--events", "1000001"],
        ["--keys", "0"],
        ["--size", "4000000000"],
    ] {
        let ended = bench.run(&wrong);
        assert_eq!(ended.code, Some(2), "{ended:?}");
    }
    assert_eq!(place.number(ALL), 0);

    let empty = Place::empty();
    let ended = empty.outbox(&["bench", "--yes", "--publisher-url", &url]);
    ended.failure(5, &["outbox migrate"]);
}

/// A proxy before the test's Redis, and what keeps it at work.
fn proxy() -> (tokio::runtime::Runtime, FaultProxy, String) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let host = redis_url()
        .trim_start_matches("redis://")
        .trim_end_matches('/')
        .to_owned();
    let target: SocketAddr = host.parse().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(target)).unwrap();
    let url = format!("redis://{}", proxy.address());
    (runtime, proxy, url)
}

#[test]
fn a_broker_that_goes_away_or_falls_silent_ends_the_run_at_the_time_limit() {
    for is_silent in [false, true] {
        let bench = Bench::new();
        bench.shut_gate();
        let (runtime, mut proxy, url) = proxy();
        let flags = ["--events", "50", "--timeout", "3s", "--json"];
        let (running, seen) = bench.start(&url, &flags);
        bench.wait_at_gate(4);
        if is_silent {
            proxy.stall(Direction::ToClient);
        } else {
            runtime.block_on(proxy.refuse());
        }
        bench.open_gate();
        let (code, log) = running.end();
        assert_eq!(code, Some(1), "{log}");
        let told = "nothing was delivered for 3s; 50 of 50 events were not delivered here: 50 wait \
                    in the outbox";
        assert!(
            log.contains(told) && log.contains("delivers what waits"),
            "{log}"
        );
        assert_eq!(log.contains("last failure: "), !is_silent, "{log}");
        let told = object(&seen.text());
        assert_eq!(told["write"]["events"], 50, "{told}");
        assert_eq!(
            (&told["drain"]["events"], &told["live"]),
            (&0.into(), &Value::Null),
            "{told}"
        );
        let rest = &told["undelivered"];
        assert_eq!(
            (&rest["total"], &rest["waiting"]),
            (&50.into(), &50.into()),
            "{rest}"
        );
        assert_eq!(
            bench.place.number(UNTOUCHED),
            50,
            "to look at them changes nothing"
        );

        // The next run delivers them beside its own, and does not count them.
        let told = object(
            &bench
                .run(&["--events", "20", "--rate", "100", "--json"])
                .success(),
        );
        assert_eq!(
            (&told["others"], &told["drain"]["events"]),
            (&50.into(), &20.into()),
            "{told}"
        );
        assert_eq!(entries(&bench.topic).len(), 90);
    }
}

#[test]
fn events_of_a_topic_that_fails_are_told_with_the_cause() {
    let bench = Bench::new();
    let () = redis().set(&bench.topic, "no stream").unwrap();
    let mut command = bench.command(
        &redis_url(),
        &["--events", "40", "--timeout", "2s", "--json"],
    );
    // Put off for so long that none is due again at the end.
    command
        .env("OUTBOX__ROUTES__DEFAULT__BREAKER__BASE", "1h")
        .env("OUTBOX__ROUTES__DEFAULT__BREAKER__CAP", "1h");
    let ended = run(command, b"");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("last failure: ") && ended.stderr.contains("WRONGTYPE"),
        "{ended:?}"
    );
    let rest = object(&ended.stdout)["undelivered"].clone();
    let count = |name: &str| rest[name].as_u64().unwrap();
    assert_eq!(
        (count("total"), count("dead"), count("elsewhere")),
        (40, 0, 0),
        "{rest}"
    );
    assert_eq!((count("failed"), count("waiting")), (40, 0), "{rest}");
}

#[test]
fn dead_letters_end_the_run_and_are_told() {
    let bench = Bench::new();
    let mut command = bench.command(&redis_url(), &["--events", "30", "--json"]);
    command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__FIELD_BYTES_MAX", "50");
    let ended = run(command, b"");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let told = "30 of 30 events were not delivered here: 30 are dead letters";
    assert!(
        ended.stderr.contains(told) && ended.stderr.contains("outbox dead list"),
        "{ended:?}"
    );
    assert_eq!(object(&ended.stdout)["undelivered"]["dead"], 30);
}

/// The other relay is at work before, so that it may take any share, and all of it.
#[test]
fn another_relay_that_takes_a_part_is_told() {
    let bench = Bench::new();
    let relay = bench.place.relay(&["--topic", &bench.topic]);
    relay.wait_for_log("relay started");
    let ended = bench.run(&["--events", "300", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let told = object(&ended.stdout);
    let here = told["drain"]["events"].as_u64().unwrap();
    let rest = &told["undelivered"];
    assert_eq!(rest["elsewhere"].as_u64(), Some(300 - here), "{told}");
    assert_eq!(rest["total"], rest["elsewhere"], "{told}");
    assert!(
        ended.stderr.contains("were taken by another relay"),
        "{ended:?}"
    );
    assert!(
        ended.stderr.contains("let no other relay take the topic"),
        "{ended:?}"
    );
    relay.stop();
    assert_eq!(bench.place.number(DONE), 300);
}

#[test]
fn a_store_that_goes_away_is_told_with_what_was_written() {
    let bench = Bench::new();
    bench.shut_gate();
    let flags = ["--events", "50", "--writers", "2", "--json"];
    let (running, seen) = bench.start(&redis_url(), &flags);
    bench.wait_at_gate(2);
    bench.place.let_in(false);
    let (code, log) = running.end();
    bench.place.let_in(true);
    assert_eq!(code, Some(3), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("error: enqueue: "), "{log}");
    assert_eq!(object(&seen.text())["write"]["events"], 0);
    assert_eq!(bench.place.number(ALL), 0);
}

#[test]
fn a_store_that_takes_events_and_hands_out_none_is_told_as_the_cause() {
    let bench = Bench::new();
    bench.place.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'no claims here'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox.queue
             FOR EACH ROW EXECUTE FUNCTION refuse();",
    );
    let ended = bench.run(&["--events", "20", "--timeout", "1s", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for part in [
        "not all of 20 events were delivered, and what became of the others could not be told",
        "; last failure: claim: ",
    ] {
        assert!(ended.stderr.contains(part), "no {part:?} in {ended:?}");
    }
    assert_eq!(object(&ended.stdout)["write"]["events"], 20);
}

#[test]
fn ctrl_c_while_writing_lets_the_commit_end_and_tells_what_waits() {
    let bench = Bench::new();
    bench.shut_gate();
    let flags = ["--events", "50", "--writers", "1", "--json"];
    let (running, seen) = bench.start(&redis_url(), &flags);
    bench.wait_at_gate(1);
    running.signal(Signal::INT);
    running.wait_for_log("stopping: what is under way is finished");
    bench.open_gate();
    let (code, log) = running.end();
    assert_eq!(code, Some(130), "{log}");
    let told = "stopped by a signal; 1 of 1 events were not delivered here: 1 wait in the outbox";
    assert!(log.contains(told), "{log}");
    assert_eq!(object(&seen.text())["write"]["events"], 1);
    assert_eq!(bench.place.number(UNTOUCHED), 1);
}

#[test]
fn ctrl_c_while_relaying_finishes_what_is_in_flight() {
    let bench = Bench::new();
    let flags = ["--events", "90", "--rate", "10/s", "--json"];
    let (running, seen) = bench.start(&redis_url(), &flags);
    bench
        .place
        .wait_for(&format!("SELECT least(93, ({ALL}))"), 93);
    running.signal(Signal::TERM);
    let (code, log) = running.end();
    assert_eq!(code, Some(130), "{log}");
    let told = object(&seen.text());
    let written = told["live"]["written"].as_i64().unwrap();
    assert!((3..90).contains(&written), "{told}");
    assert_eq!(bench.place.number(ALL), 90 + written);
    assert_eq!(told["drain"]["events"], 90, "{told}");
    let live = told["live"]["events"].as_i64().unwrap();
    assert_eq!(bench.place.number(DONE), 90 + live);
    assert_eq!(bench.place.number(UNTOUCHED), written - live);
}

#[test]
fn a_second_signal_does_not_wait() {
    let bench = Bench::new();
    bench.shut_gate();
    let (running, seen) = bench.start(&redis_url(), &["--events", "50"]);
    bench.wait_at_gate(4);
    running.signal(Signal::INT);
    running.wait_for_log("stopping: what is under way is finished");
    running.signal(Signal::INT);
    let (code, log) = running.end();
    assert_eq!(code, Some(130), "{log}");
    assert!(log.contains("ended at once by a second signal"), "{log}");
    assert_eq!(seen.text(), "");
}

#[test]
fn a_terminal_gets_a_bar_for_each_part() {
    let bench = Bench::new();
    let command = bench.command(&redis_url(), &["--events", "50", "--rate", "50/s"]);
    shows_a_bar(command, |text| {
        text.contains("writing and delivering") && text.contains(" left")
    });
}
