//! Whatever is wrong: one line that says what, where and what to do, the documented exit code, and
//! no row lost or stuck.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, process::Stdio};

use crate::support::{PASSWORD_ENCODED, Place, Running, arg, bare, lines, redis_url, run, wait};

/// A port where nobody listens.
fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_nearest_name() {
    let place = Place::empty();
    let file = place.file("o.toml", "[store]\nschema = \"outbox\"\nworkerz = 3\n");
    place.outbox(&["status", "--config", arg(&file)]).failure(
        2,
        &[
            "unknown key `store.workerz`",
            "o.toml line 3",
            "did you mean `workers`?",
        ],
    );
    let mut command = place.command(&["status"]);
    command.env("OUTBOX__RELAY__POLL_MIM", "1s");
    run(command, b"").failure(
        2,
        &[
            "unknown key `relay.poll_mim`",
            "environment variable OUTBOX__RELAY__POLL_MIM",
            "did you mean `poll_min`?",
        ],
    );
    let mut command = place.command(&["status"]);
    command.env("OUTBOX_CONFIG", "/no/such/file.toml");
    run(command, b"").failure(2, &["/no/such/file.toml", "OUTBOX_CONFIG"]);
}

#[test]
fn the_code_is_right_where_nobody_takes_the_message() {
    let code = |arguments: &[&str], stdout: Stdio, stderr: Stdio| {
        let mut command = bare(arguments);
        let command = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.status().unwrap().code()
    };
    let full = || std::fs::File::create("/dev/full").unwrap().into();
    let closed = || std::io::pipe().unwrap().1.into();
    for arguments in [&["status"][..], &["no-such-command"]] {
        assert_eq!(code(arguments, Stdio::null(), full()), Some(2));
        assert_eq!(code(arguments, Stdio::null(), closed()), Some(2));
    }
    // Who has read enough, as `outbox --help | head -1`, is no failure.
    for arguments in [&["--help"], &["--version"]] {
        assert_eq!(code(arguments, closed(), Stdio::null()), Some(0));
        assert_eq!(code(arguments, full(), Stdio::null()), Some(1));
    }
}

#[test]
fn the_right_form_of_a_url_is_told_whole() {
    // What looks like user and password of a URL is taken out of every message, hints as well.
    let mut command = bare(&["status"]);
    command.env("OUTBOX__STORE__URL", "localhost");
    let line = run(command, b"").failure(2, &["write postgres://host/database"]);
    assert!(!line.contains("***"), "{line}");
    let place = Place::migrated();
    let line = place
        .outbox(&["relay", "--publisher-url", "redis://h:port"])
        .failure(2, &["redis[s]://host[:port][/db]"]);
    assert!(!line.contains("***"), "{line}");
}

#[test]
fn a_wrong_url_is_told_without_it() {
    for url in [
        "mysql://u:s3cret@h/d",
        "localhost",
        "postgres://u:s3@cret@h/d",
        "postgres://h:port/d",
    ] {
        let mut command = bare(&["status"]);
        command.env("OUTBOX__STORE__URL", url);
        let line = run(command, b"").failure(2, &["configuration"]);
        assert!(
            !line.contains("s3cret") && !line.contains("cret@"),
            "{line}"
        );
    }
    let place = Place::migrated();
    place
        .outbox(&[
            "relay",
            "--publisher",
            "redis",
            "--publisher-url",
            "redis://h:port",
        ])
        .failure(2, &["configuration", "url"]);
    place
        .outbox(&["relay", "--publisher-url", "mqtt://h"])
        .failure(2, &["of no broker that is known here", "redis://"]);
    bare(&["status"]).output().unwrap();
    run(bare(&["status"]), b"").failure(2, &["no database is named", "OUTBOX__STORE__URL"]);
}

#[test]
fn a_database_that_is_not_there_is_told() {
    let mut command = bare(&["status"]);
    let port = closed_port();
    command.env(
        "OUTBOX__STORE__URL",
        format!("postgres://u@127.0.0.1:{port}/d"),
    );
    run(command, b"").failure(
        3,
        &[
            "unavailable",
            &format!("127.0.0.1:{port}"),
            "start the server",
        ],
    );

    let place = Place::empty();
    let missing = place.url() + "_missing";
    let mut command = bare(&["status"]);
    command.env("OUTBOX__STORE__URL", missing);
    run(command, b"").failure(
        2,
        &["does not exist", &format!("{}_missing", place.database())],
    );
}

#[test]
fn a_schema_that_is_missing_or_newer_is_told() {
    let place = Place::empty();
    for command in [
        &["status"][..],
        &["dead", "list"],
        &["migrate", "--check"],
        &["relay", "--publisher", "stdout"],
    ] {
        let ended = place.outbox(command);
        assert_eq!(ended.code, Some(5), "{ended:?}");
        let last = ended.stderr.lines().last().unwrap();
        assert!(
            last.starts_with("error: ") && last.contains("run `outbox migrate`"),
            "{last}"
        );
    }
    place
        .outbox(&["enqueue", "--topic", "t", "--type", "T", "--tombstone"])
        .failure(5, &["schema_missing", "outbox migrate"]);

    place.outbox(&["migrate"]).success();
    place.sql("INSERT INTO outbox.migration (version, name) VALUES (99, 'of a later program')");
    for command in [&["status"][..], &["migrate"], &["migrate", "--check"]] {
        place
            .outbox(command)
            .failure(5, &["schema_newer", "update this program"]);
    }
}

/// A role of the test's own, dropped with it. Members of `outbox_test_password` must give their
/// password: the server of `cargo xtask services` asks them for it and trusts everybody else.
struct Role<'a>(&'a Place, String);

impl<'a> Role<'a> {
    fn new(place: &'a Place, name: &str) -> Self {
        let name = format!("{}_{name}", place.database());
        place.sql(&format!(
            "DO $$ BEGIN CREATE ROLE outbox_test_password; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
             CREATE ROLE {name} LOGIN PASSWORD 'right' IN ROLE outbox_test_password"
        ));
        Self(place, name)
    }

    fn run(&self, password: &str, arguments: &[&str]) -> crate::support::Ended {
        let mut command = bare(arguments);
        command.env(
            "OUTBOX__STORE__URL",
            self.0.url_as(&format!("{}:{password}", self.1)),
        );
        run(command, b"")
    }
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        self.0
            .sql(&format!("DROP OWNED BY {0}; DROP ROLE {0}", self.1));
    }
}

#[test]
fn a_wrong_password_is_told_and_not_shown() {
    let place = Place::migrated();
    let role = Role::new(&place, "pw");
    for command in [&["status"][..], &["migrate"], &["dead", "list"]] {
        let line = role
            .run(PASSWORD_ENCODED, command)
            .failure(4, &["unauthenticated", "check user, password"]);
        assert!(!line.contains("ord%21"), "{line}");
    }
    let ended = role.run(PASSWORD_ENCODED, &["relay", "--publisher", "stdout"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
}

#[test]
fn a_refused_permission_is_told() {
    let place = Place::migrated();
    let role = Role::new(&place, "perm");
    role.run("right", &["status"])
        .failure(4, &["unauthorized", "grant the permission"]);
    role.run("right", &["migrate", "--schema", "other"])
        .failure(4, &["unauthorized", "permission denied"]);
    let enqueue = ["enqueue", "--topic", "t", "--type", "T", "--tombstone"];
    role.run("right", &enqueue)
        .failure(4, &["unauthorized", "permission denied"]);

    // A writer needs no more than this.
    place.sql(&format!(
        "GRANT USAGE ON SCHEMA outbox TO {0}; GRANT INSERT ON outbox.queue TO {0}",
        role.1
    ));
    role.run("right", &enqueue).success();
    // A right that only some commands take is named by them.
    place.sql(&format!(
        "GRANT SELECT ON outbox.migration TO {0}; GRANT SELECT, UPDATE ON outbox.queue TO {0};
         INSERT INTO outbox.queue (topic, event_type, status) VALUES ('t', 'T', 'failed')",
        role.1
    ));
    role.run("right", &["purge", "--dry-run"])
        .failure(4, &["dedup", "needs=SELECT on the tables queue and dedup"]);
    role.run("right", &["dead", "discard", "--all", "--yes"])
        .failure(4, &["needs=DELETE on the table queue"]);
    place.sql(&format!("REVOKE UPDATE ON outbox.queue FROM {}", role.1));
    // And whoever watches, this.
    place.sql(&format!(
        "GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO {}",
        role.1
    ));
    assert!(
        role.run("right", &["status"])
            .success()
            .contains("pending    1")
    );
    role.run("right", &["dead", "list"]).success();
    role.run("right", &["purge", "--dry-run"]).success();
    for change in ["requeue", "discard"] {
        role.run("right", &["dead", change, "--all", "--dry-run"])
            .success();
        role.run("right", &["dead", change, "--all"])
            .failure(if change == "requeue" { 4 } else { 2 }, &[]);
    }
}

#[test]
fn a_broker_that_refuses_the_password_ends_the_relay() {
    let place = Place::migrated();
    let url = redis_url().replace("redis://", &format!("redis://nobody:{PASSWORD_ENCODED}@"));
    let mut command = place.command(&["relay"]);
    command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", url);
    let ended = run(command, b"");
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let last = ended.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: ")
            && last.contains("unauthenticated")
            && last.contains("route=default"),
        "{last}"
    );
    assert!(last.contains("check user, password"), "{last}");
}

#[test]
fn a_broker_that_is_not_there_is_waited_for() {
    let place = Place::migrated();
    let topic = place.topic("t");
    place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, 5).as_bytes())
        .success();
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let relay =
        Running::start(place.command(&["relay", "--http", "127.0.0.1:0", "--publisher-url", &url]));
    wait("a route that is paused", || {
        relay.get("/readyz").1.contains("\"paused\":true")
    });
    let (status, body) = relay.get("/readyz");
    assert_eq!(status, 503, "{body}");
    assert!(
        body.contains("\"ready\":false") && body.contains("unavailable"),
        "{body}"
    );
    assert_eq!(relay.get("/healthz").0, 200);
    relay.stop();
    // No attempt is burnt by an outage, and the next relay starts at once.
    assert_eq!(
        place.number("SELECT max(attempts)::bigint FROM outbox.queue"),
        0
    );
    let relay = place.relay(&[]);
    place.wait_for("SELECT count(*) FROM outbox.queue WHERE status = 'done'", 5);
    relay.stop();
}

#[test]
fn a_database_that_is_not_there_at_the_start_is_waited_for() {
    let mut command = bare(&["relay", "--publisher", "stdout", "--http", "127.0.0.1:0"]);
    let port = closed_port();
    command.env(
        "OUTBOX__STORE__URL",
        format!("postgres://u@127.0.0.1:{port}/d"),
    );
    command.env("OUTBOX__STORE__CONNECT_TIMEOUT", "200ms");
    let relay = Running::start(command);
    wait("the failure of the store", || {
        relay.get("/readyz").1.contains("unavailable")
    });
    let (status, body) = relay.get("/readyz");
    assert_eq!(status, 503, "{body}");
    assert!(
        body.contains("\"started\":false") && body.contains(&port.to_string()),
        "{body}"
    );
    assert_eq!(relay.get("/healthz").0, 200);
    let log = relay.stop();
    assert!(log.contains("start the server"), "no remedy: {log}");
}

#[test]
fn oversize_is_refused_with_the_limit_and_nothing_is_written() {
    let place = Place::migrated();
    let file = place.file("big", "x".repeat(900_000));
    let flags = [
        "enqueue",
        "--topic",
        "t",
        "--type",
        "T",
        "--content-type",
        "text/plain",
        "--payload-file",
        arg(&file),
    ];
    place.outbox(&flags).failure(6, &["900012 bytes", "900000"]);
    let header = format!("h={}", "x".repeat(65_536));
    let flags = [
        "enqueue",
        "--topic",
        "t",
        "--type",
        "T",
        "--payload",
        "1",
        "--header",
        &header,
    ];
    place
        .outbox(&flags)
        .failure(6, &["the headers", "65537 bytes", "65536"]);
    let topic = "t".repeat(256);
    place
        .outbox(&[
            "enqueue",
            "--topic",
            &topic,
            "--type",
            "T",
            "--payload",
            "1",
        ])
        .failure(6, &["topic", "256 bytes", "255"]);
    assert_eq!(place.number("SELECT count(*) FROM outbox.queue"), 0);
}

#[test]
fn nul_and_broken_utf8_are_told_by_field_and_line_and_nothing_is_written() {
    let place = Place::migrated();
    for flag in ["--topic", "--type", "--key", "--aggregate", "--header"] {
        let mut command = place.command(&["enqueue", "--payload", "1"]);
        for (name, value) in [("--topic", "t"), ("--type", "T")] {
            if name != flag {
                command.args([name, value]);
            }
        }
        command.arg(flag).arg(OsStr::from_bytes(b"a\xff:=b"));
        run(command, b"").failure(6, &[flag, "UTF-8"]);
    }
    place
        .outbox(&[
            "enqueue",
            "--topic",
            "a\nb",
            "--type",
            "T",
            "--payload",
            "1",
        ])
        .failure(6, &["topic", "control character"]);

    let good = lines("t", 2);
    let stdin = |line: &[u8]| {
        let input = [good.as_bytes(), line, b"\n"].concat();
        place.outbox_with(&["enqueue", "--stdin"], &input)
    };
    stdin(br#"{"topic":"a\u0000b","type":"T","payload":1}"#)
        .failure(6, &["line 3", "topic", "control character"]);
    stdin(b"{\"topic\":\"\xff\",\"type\":\"T\",\"payload\":1}")
        .failure(6, &["line 3", "UTF-8", "byte 10"]);
    stdin(br#"{"topic":"t","type":"T","payload":nul}"#).failure(6, &["line 3", "JSON"]);
    stdin(br#"{"topic":"t","type":"T","pay":1}"#).failure(6, &["line 3", "unknown field `pay`"]);
    stdin(b"\x00").failure(6, &["line 3"]);
    place
        .outbox(&["enqueue", "--topic", "t", "--type", "T", "--payload", "{"])
        .failure(6, &["no valid JSON", "--content-type"]);
    assert_eq!(place.number("SELECT count(*) FROM outbox.queue"), 0);

    // NUL in a payload is no fault: bytes in are bytes out.
    let input = r#"{"topic":"t","type":"T","payload_base64":"YQBi"}"#;
    place
        .outbox_with(&["enqueue", "--stdin"], input.as_bytes())
        .success();
}

#[test]
fn a_topic_that_the_broker_cannot_take_is_dead_with_its_reason() {
    let place = Place::migrated();
    let topic = place.topic("good");
    place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, 100).as_bytes())
        .success();
    place.sql("INSERT INTO outbox.queue (topic, event_type, payload) VALUES ('', 'T', '{}')");
    let relay = place.relay(&[]);
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        100,
    );
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'failed'",
        1,
    );
    relay.stop();
    let text = place.outbox(&["dead", "list"]).success();
    assert!(text.contains("invalid") && text.contains("topic"), "{text}");
}

#[test]
fn what_the_relay_cannot_do_is_told_before_it_starts() {
    let place = Place::migrated();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let ended = place.outbox(&["relay", "--publisher", "stdout", "--http", &address]);
    ended.failure(2, &[&address, "--http"]);
    place
        .outbox(&["relay", "--publisher", "stdout", "--log-level", "a=b=c"])
        .failure(2, &["log.level"]);
    place
        .outbox(&["relay", "--publisher", "stdout", "--check"])
        .success();
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let ended = place.outbox(&["relay", "--publisher-url", &url, "--check"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    for part in [
        "wrong  destination of route default",
        "unavailable",
        "route=default",
    ] {
        assert!(ended.stdout.contains(part), "no {part:?} in {ended:?}");
    }
}
