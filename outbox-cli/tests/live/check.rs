//! `relay --check`

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::support::{Ended, Place, arg, lines, redis_url, stream};

/// A port that nobody listens on.
fn closed() -> String {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("redis://{}", holder.local_addr().unwrap())
}

/// Checks a configuration of two routes to these brokers.
fn check(place: &Place, a: &str, b: &str) -> Ended {
    let route = |name: &str, broker: &str| {
        format!("[routes.{name}]\ntopics = [\"{name}.*\"]\npublisher = {broker}\n")
    };
    let file = place.file("check.toml", route("a", a) + &route("b", b));
    place.outbox(&["relay", "--check", "--config", arg(&file)])
}

fn redis(url: &str) -> String {
    format!("{{ kind = \"redis\", url = \"{url}\" }}")
}

/// What stands on the lines of this kind, without the reasons.
fn findings<'a>(ended: &'a Ended, kind: &str) -> Vec<&'a str> {
    let lines = ended.stdout.lines();
    lines
        .filter_map(|line| line.strip_prefix(kind)?.trim_start().split(": ").next())
        .collect()
}

#[test]
fn each_route_is_told_whether_right_or_wrong() {
    let place = Place::migrated();
    let topic = place.topic("t");
    place
        .outbox_with(&["enqueue", "--stdin"], lines(&topic, 1).as_bytes())
        .success();
    let good = redis(&redis_url());
    let (down, wrong) = (redis(&closed()), "{ kind = \"redis\" }");

    let ended = check(&place, &good, &good);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let all = [
        "store",
        "settings of the store",
        "routes and flags",
        "relay settings",
        "settings of route a",
        "settings of route b",
        "topics of the routes",
        "destination of route a",
        "destination of route b",
    ];
    assert_eq!(findings(&ended, "ok"), all);

    for (a, b, code, expected) in [
        (&*down, &*good, 3, &["destination of route a"][..]),
        (&good, &down, 3, &["destination of route b"]),
        (
            &down,
            &down,
            3,
            &["destination of route a", "destination of route b"],
        ),
        (
            &down,
            wrong,
            2,
            &["settings of route b", "destination of route a"],
        ),
        (
            wrong,
            wrong,
            2,
            &["settings of route a", "settings of route b"],
        ),
    ] {
        let ended = check(&place, a, b);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(findings(&ended, "wrong"), expected, "{ended:?}");
        let told = format!("{} of ", expected.len());
        assert!(ended.stderr.contains(&told), "{ended:?}");
        let wrong = ended
            .stdout
            .lines()
            .filter(|line| line.starts_with("wrong"));
        for line in wrong {
            assert!(line.contains(" — "), "no remedy in {line}");
        }
    }

    let pending = "SELECT count(*) FROM outbox.queue WHERE status = 'pending' AND attempts = 0";
    assert_eq!(place.number(pending), 1, "a check claims nothing");
    assert!(stream(&topic).is_empty(), "a check sends nothing");
}

#[test]
fn a_wrong_store_does_not_hide_a_wrong_route() {
    let place = Place::empty();
    let ended = check(&place, &redis(&closed()), "{ kind = \"stdout\" }");
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert_eq!(
        findings(&ended, "wrong"),
        ["store", "destination of route a"]
    );
    assert!(ended.stdout.contains("outbox migrate"), "{ended:?}");
}

/// The kernel takes the connections, and nobody ever reads from them.
#[test]
fn silent_brokers_are_told_within_the_relays_time_limit() {
    let place = Place::migrated();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let broker = format!(
        "{{ kind = \"redis\", url = \"redis://{}\", connect_timeout = \"1h\", publish_timeout = \"1h\" }}",
        silent.local_addr().unwrap()
    );
    let route = |name| format!("[routes.{name}]\ntopics = [\"{name}.*\"]\npublisher = {broker}\n");
    let limit = "[relay]\npublish_timeout = \"4s\"\n".to_owned();
    let file = place.file(
        "silent.toml",
        limit + &route("a") + &route("b") + &route("c"),
    );
    let started = Instant::now();
    let ended = place.outbox(&["relay", "--check", "--config", arg(&file)]);
    let took = started.elapsed();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(
        findings(&ended, "wrong"),
        ["a", "b", "c"].map(|name| format!("destination of route {name}"))
    );
    let told = "check: timeout: no answer in time (limit=4s, route=a) — ";
    assert!(ended.stdout.contains(told), "{ended:?}");
    // One limit for all three, not one after the other.
    assert!(took < Duration::from_secs(12), "{took:?}: {ended:?}");
}
