//! Case creds-in-log: the password of a URL is in no output, raw or percent-encoded.

use crate::support::{
    Ended, PASSWORD, PASSWORD_ENCODED, Place, Running, arg, bare, lines, redis, redis_url, run,
};

/// Every form in which a part of it might show. The last ones are what a parser that splits at the
/// wrong place would print as host, port or database.
const FORMS: [&str; 6] = [
    PASSWORD,
    PASSWORD_ENCODED,
    "w/ord%21",
    "ord%2521",
    "ord!",
    "p@ss",
];

#[track_caller]
fn clean(what: &str, text: &str) {
    for form in FORMS {
        assert!(!text.contains(form), "{what}: {form} in {text}");
    }
}

const COMMANDS: [&[&str]; 10] = [
    &["migrate"],
    &["migrate", "--check"],
    &["status", "--json"],
    &["dead", "list"],
    &["dead", "show", "00000000-0000-7000-8000-000000000001"],
    &["dead", "requeue", "--all"],
    &["dead", "discard", "--all", "--yes"],
    &["enqueue", "--topic", "t", "--type", "T", "--payload", "1"],
    &["relay", "--publisher", "stdout", "--check"],
    &["bench", "--yes", "--publisher-url", "redis://127.0.0.1:1"],
];

fn all_of(ended: &Ended) -> String {
    format!("{}{}", ended.stdout, ended.stderr)
}

#[test]
fn creds_in_log_of_every_command_that_fails() {
    let place = Place::empty();
    let file_of = |url: &str| place.file("url", format!("{url}\n"));
    for password in [PASSWORD, PASSWORD_ENCODED] {
        for url in [
            // No such user; no such host; no port; no database; another scheme; nonsense.
            place.url_as(&format!("nobody:{password}")),
            format!("postgres://u:{password}@host.invalid/d"),
            format!("postgres://u:{password}@127.0.0.1:1/d"),
            place.url_as(&format!("nobody:{password}")) + "_missing",
            format!("mysql://u:{password}@h/d"),
            format!("postgres://u:{password}@h:port/d"),
            format!("postgres://h/d?sslmode=require&password={password}"),
            format!("postgres://h/d?passwrd={password}"),
            password.to_owned(),
        ] {
            for (index, command) in COMMANDS.iter().enumerate() {
                let mut program = bare(command);
                // By each of the three ways in turn.
                match index % 3 {
                    0 => program.env("OUTBOX__STORE__URL", &url),
                    1 => program.args(["--store-url", &url]),
                    _ => program.env("OUTBOX__STORE__URL_FILE", file_of(&url)),
                };
                program.env("OUTBOX__LOG__LEVEL", "debug");
                program.env("OUTBOX__STORE__CONNECT_TIMEOUT", "1s");
                let ended = run(program, b"");
                assert_ne!(ended.code, Some(0), "{command:?} {ended:?}");
                clean(&format!("{command:?}"), &all_of(&ended));
            }
        }
    }
}

#[test]
fn creds_in_log_of_what_is_typed_in_the_wrong_place() {
    let url = format!("postgres://u:{PASSWORD}@h/d");
    let place = Place::empty();
    for arguments in [
        &["status", &url][..],
        &["relay", "--publisher", &url],
        &["relay", "--http", &url],
        &["dead", "show", &url],
        &["dead", "list", "--older-than", &url],
        &["relay", "--topic", &format!("{url}*x")],
        &[url.as_str()],
        &["status", "--config", &url],
    ] {
        let ended = run(bare(arguments), b"");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        clean(&format!("{arguments:?}"), &all_of(&ended));
    }
    for text in [
        format!("store = \"{url}\""),
        format!("[store]\nulr = \"{url}\""),
        format!("[store]\nurl = \"{url}\nschema = \"x\""),
        format!("[store]\nlease = \"{url}\""),
        format!("[relay]\nbatch_events_max = \"{url}\""),
        format!("[log]\nlevel = \"{url}\""),
        format!("[routes.default]\ntopics = [\"{url}*x\"]"),
        format!("[routes.default.publisher]\nkind = \"{url}\""),
    ] {
        let file = place.file("wrong.toml", &text);
        let ended = run(bare(&["status", "--config", arg(&file)]), b"");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        clean(&text.replace(&url, "…"), &all_of(&ended));
    }
}

/// A Redis user with that password, gone after the test.
struct User(String);

impl User {
    fn new(place: &Place) -> Self {
        let name = place.database().to_owned();
        let rules = ["reset", "on", &format!(">{PASSWORD}"), "~*", "+@all"];
        let () = redis::cmd("ACL")
            .arg("SETUSER")
            .arg(&name)
            .arg(&rules[..])
            .query(&mut redis())
            .unwrap();
        Self(name)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _: redis::RedisResult<()> = redis::cmd("ACL")
            .arg("DELUSER")
            .arg(&self.0)
            .query(&mut redis());
    }
}

#[test]
fn creds_in_log_of_a_relay_that_works_and_of_its_broker_that_refuses() {
    let place = Place::migrated();
    let user = User::new(&place);
    let topic = place.topic("t");
    place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, 50).as_bytes())
        .success();
    let url = redis_url().replace(
        "redis://",
        &format!("redis://{}:{PASSWORD_ENCODED}@", user.0),
    );
    let command = |url: &str| {
        let mut command =
            place.command(&["relay", "--http", "127.0.0.1:0", "--log-level", "debug"]);
        command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", url);
        command
    };
    let relay = Running::start(command(&url));
    place.wait_for(
        "SELECT count(*) FROM outbox.queue WHERE status = 'done'",
        50,
    );
    clean("/metrics", &relay.get("/metrics").1);
    clean("/readyz", &relay.get("/readyz").1);
    clean("the log", &relay.stop());

    let wrong = url.replace(PASSWORD_ENCODED, &format!("{PASSWORD_ENCODED}x"));
    let ended = run(command(&wrong), b"");
    assert_eq!(ended.code, Some(4), "{ended:?}");
    clean("a refused password", &all_of(&ended));
    let mut bench = place.command(&["bench", "--yes", "--log-level", "debug"]);
    bench.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", &wrong);
    let ended = run(bench, b"");
    assert_eq!(ended.code, Some(4), "{ended:?}");
    clean("a refused password of a run", &all_of(&ended));
    for wrong in [
        format!("redis://u:{PASSWORD}@h"),
        format!("redis://u:{PASSWORD_ENCODED}@h:port"),
        format!("ftp://u:{PASSWORD}@h"),
        format!("http://u:{PASSWORD}@h:port"),
    ] {
        let ended = run(command(&wrong), b"");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        clean("a wrong URL", &all_of(&ended));
    }
    // A broker that is not there: waited for, and told again and again.
    let relay = Running::start(command(&format!(
        "redis://u:{PASSWORD_ENCODED}@127.0.0.1:1"
    )));
    crate::support::wait("a paused route", || {
        relay.get("/readyz").1.contains("\"paused\":true")
    });
    clean("/readyz", &relay.get("/readyz").1);
    clean("the log", &relay.stop());
}
