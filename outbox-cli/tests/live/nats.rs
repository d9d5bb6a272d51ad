//! The publisher `nats` in a relay.

use async_nats::jetstream::{self, stream};
use outbox_testkit::{block_on, servers::Nats};

use crate::support::{PASSWORD, PASSWORD_ENCODED, Place, Running, arg, lines};

const DONE: &str = "SELECT count(*) FROM outbox.queue WHERE status = 'done'";

/// A stream for the subject.
fn stream(server: &Nats, subject: &str, window: std::time::Duration) {
    block_on(async {
        let client = async_nats::connect(server.url()).await.unwrap();
        let config = stream::Config {
            name: "S".to_owned(),
            subjects: vec![subject.to_owned()],
            duplicate_window: window,
            ..Default::default()
        };
        jetstream::new(client).create_stream(config).await.unwrap();
    });
}

/// How many messages it has, and its first.
fn stored(server: &Nats) -> (u64, async_nats::jetstream::message::StreamMessage) {
    block_on(async {
        let client = async_nats::connect(server.url()).await.unwrap();
        let mut stream = jetstream::new(client).get_stream("S").await.unwrap();
        let messages = stream.info().await.unwrap().state.messages;
        (messages, stream.get_raw_message(1).await.unwrap())
    })
}

const FIVE_MINUTES: std::time::Duration = std::time::Duration::from_secs(300);

#[test]
fn a_relay_publishes_to_a_stream_through_restarts() {
    let place = Place::migrated();
    let mut server = Nats::start().unwrap();
    stream(&server, "orders.>", FIVE_MINUTES);
    place
        .outbox_with(
            &["enqueue", "--stdin"],
            lines("orders.placed", 5_000).as_bytes(),
        )
        .success();
    let relay = Running::start(place.command(&["relay", "--publisher-url", &server.url()]));
    place.wait_for(
        "SELECT (count(*) > 500)::int::bigint FROM outbox.queue WHERE status = 'done'",
        1,
    );
    server.kill().unwrap();
    server.restart().unwrap();
    place.wait_for(DONE, 5_000);
    relay.stop();
    let (messages, first) = stored(&server);
    assert_eq!(messages, 5_000, "the stream dropped the copies");
    assert_eq!(first.subject.as_str(), "orders.placed");
    let header = |name: &str| {
        first
            .headers
            .get(name)
            .map(|value| value.as_str().to_owned())
    };
    assert_eq!(header("Nats-Msg-Id"), header("event-id"));
    assert_eq!(header("Outbox-Key"), Some("k0".to_owned()));
}

/// Every setting is read; a misspelt one is met by the nearest name.
#[test]
fn settings_are_those_of_docs_md() {
    let place = Place::migrated();
    let server = Nats::start().unwrap();
    stream(&server, "t", std::time::Duration::from_secs(60));
    let check = |settings: &str| {
        let file = place.file(
            "nats.toml",
            format!(
                "[routes.default.publisher]\nurl = \"{}\"\n{settings}\n",
                server.url()
            ),
        );
        place.outbox(&["--config", arg(&file), "relay", "--check"])
    };
    let all = "kind = \"nats\"\npublish_timeout = \"9s\"\nconnect_timeout = \"2s\"\nencoding = \"debezium\"\n\
               in_flight_events_max = 7\nin_flight_bytes_max = 9000\nmessage_bytes_max = 100000\n\
               streams = [\"S\"]\nduplicate_window_min = \"60s\"\ninbox_prefix = \"_INBOX.mine\"";
    let ended = check(all);
    assert!(!ended.stderr.contains("WARN"), "{}", ended.stderr);
    ended.success();
    let ended = check("streams = [\"S\"]");
    assert!(
        ended.stderr.contains("duplicate window of 1m is shorter"),
        "{}",
        ended.stderr
    );
    ended.success();
    for (wrong, told) in [
        ("in_flight_event_max = 7", "in_flight_events_max"),
        ("in_flight_events_max = 20000", "in_flight_events_max"),
        (
            "stream_entries_max = 7",
            "has no meaning for the publisher nats",
        ),
        ("nkey_file = \"/absent\"", "nkey_file"),
        ("domain = \"a b\"", "domain"),
        ("domain = \"absent\"", "JetStream does not answer"),
    ] {
        let ended = check(wrong);
        assert_ne!(ended.code, Some(0), "{wrong}");
        // What is found out by asking is a finding on standard output.
        let text = ended.stdout + &ended.stderr;
        assert!(text.contains(told), "{wrong}: {text}");
    }
}

/// Case creds-in-log, with the driver's own lines too.
#[test]
fn creds_in_log_of_a_nats_that_refuses() {
    let place = Place::migrated();
    let server = Nats::start_with("authorization { user: u, password: right }").unwrap();
    let url = format!("nats://u:{PASSWORD_ENCODED}@{}", server.address());
    for level in ["trace", "trace,async_nats=trace"] {
        let mut command = place.command(&["relay", "--check", "--log-level", level]);
        command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", &url);
        let output = command.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains("unauthenticated"), "{text}");
        assert_eq!(
            text.contains("async_nats"),
            level.contains("async_nats"),
            "{text}"
        );
        for form in [PASSWORD, PASSWORD_ENCODED] {
            assert!(!text.contains(form), "{form}: {text}");
        }
    }
}
