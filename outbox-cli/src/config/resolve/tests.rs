//! What is written, what is not, and what makes no sense.

use clap::Parser;

use super::*;
use crate::args::{Cli, Command};

fn resolve(toml: &str, flags: &[&str]) -> Result<(GlobalArgs, Config), String> {
    let settings: Settings = toml::from_str(toml).unwrap();
    let cli = Cli::try_parse_from(["outbox", "relay"].iter().chain(flags)).unwrap();
    let Command::Relay(args) = cli.command else {
        panic!("relay was asked for")
    };
    let config = Config::new(settings, &args).map_err(|failure| failure.to_string())?;
    Ok((cli.global, config))
}

#[test]
fn flags_alone_make_the_default_route() {
    let (_, config) = resolve(
        "",
        &[
            "--publisher-url",
            "redis://h",
            "--topic",
            "a",
            "--topic",
            "b*",
        ],
    )
    .unwrap();
    let [route] = &config.routes[..] else {
        panic!("one route")
    };
    assert_eq!(
        (route.name.as_str(), route.publisher.name()),
        ("default", "redis")
    );
    assert_eq!(route.topics.patterns().len(), 2);
    let (_, config) = resolve("", &["--publisher", "stdout"]).unwrap();
    assert!(config.routes[0].topics.is_all());

    // The kind by flag, the secret by file or environment.
    let url = "[routes.default]\npublisher = { url = \"redis://a\" }";
    let (_, config) = resolve(url, &["--publisher", "redis"]).unwrap();
    assert_eq!(config.routes[0].publisher.name(), "redis");
}

/// The nth example of a file in the docs.
fn documented(nth: usize) -> &'static str {
    let docs = include_str!("../../../docs.md").split("```toml").nth(nth);
    docs.unwrap().split("```").next().unwrap()
}

#[test]
fn the_smallest_documented_file_is_enough() {
    let file = documented(1)
        .replace("postgres://user@host/database", "sqlite:a.db")
        .replace("url = \"redis://host:6379\"", "kind = \"stdout\"");
    for (file, publisher) in [(documented(1), "redis"), (file.as_str(), "stdout")] {
        let (_, config) = resolve(file, &[]).unwrap();
        assert_eq!(config.routes[0].publisher.name(), publisher);
    }
}

#[test]
fn the_documented_file_is_right_and_its_defaults_are_ours() {
    let file = documented(2);
    // What is commented out is as right as the rest.
    let all = file.replace("\n# ", "\n").replace("url_file = ", "url = ");
    let all = all.replace("secret_file = ", "secret = ");
    let all = all.replace("properties_file = ", "properties = ");
    let (_, config) = resolve(&all, &[]).unwrap();
    let defaults = RelayConfig {
        worker: config.relay.worker.clone(),
        ..RelayConfig::default()
    };
    assert_eq!(format!("{:?}", config.relay), format!("{defaults:?}"));
    let named = config
        .routes
        .iter()
        .find(|route| route.name == "default")
        .unwrap();
    assert_eq!(named.policies[1].retry, RetryPolicy::default());
    assert_eq!(named.breaker, BreakerPolicy::default());
}

#[test]
fn encodings_are_read_and_a_source_belongs_to_cloud_events() {
    let encoding = |settings: &str| {
        let file = format!("routes.a.publisher = {{ url = \"redis://a\", {settings} }}");
        resolve(&file, &[]).map(|(_, config)| match &config.routes[0].publisher {
            PublisherConfig::Broker(broker) => broker.encoding.clone(),
            PublisherConfig::Stdout => panic!(),
        })
    };
    let source = "/shop".to_owned();
    for (settings, expected) in [
        ("connect_timeout = \"5s\"", Encoding::Plain),
        ("encoding = \"plain\"", Encoding::Plain),
        ("encoding = \"debezium\"", Encoding::Debezium),
        (
            "encoding = \"cloudevents\", source = \"/shop\"",
            Encoding::CloudEvents { source },
        ),
    ] {
        assert_eq!(encoding(settings).unwrap(), expected, "{settings}");
    }
    for settings in [
        "encoding = \"cloudevents\"",
        "encoding = \"cloudevents\", source = \"\"",
        "encoding = \"debezium\", source = \"/shop\"",
        "source = \"/shop\"",
    ] {
        let error = encoding(settings).unwrap_err();
        assert!(error.contains("routes.a.publisher.source"), "{error}");
    }
    let file = "routes.a.publisher = { kind = \"stdout\", encoding = \"plain\" }";
    let error = resolve(file, &[]).unwrap_err();
    assert!(error.contains("encoding has no meaning"), "{error}");
}

#[test]
fn flags_beat_the_file() {
    let file = "[http]\nlisten = \"127.0.0.1:1\"\n[routes.default]\ntopics = [\"x\"]\npublisher = { kind = \"redis\", url = \"redis://a\", stream_entries_max = 3 }";
    let (_, config) = resolve(
        file,
        &["--publisher-url", "redis://b", "--http", "127.0.0.1:2"],
    )
    .unwrap();
    let PublisherConfig::Broker(broker) = &config.routes[0].publisher else {
        panic!()
    };
    assert_eq!(
        (broker.url.expose(), broker.settings.stream_entries_max),
        ("redis://b", Some(3))
    );
    assert_eq!(config.http.unwrap().port(), 2);
    let (_, config) = resolve(file, &["--publisher", "stdout"]).unwrap();
    assert_eq!(config.routes[0].publisher.name(), "stdout");
}

#[test]
fn a_url_tells_the_kind_that_its_settings_are_of() {
    let file = "routes.default.publisher = { url = \"https://h\", secret = \"s\", requests_in_flight_max = 2 }";
    for flags in [&[][..], &["--publisher", "http"]] {
        let (_, config) = resolve(file, flags).unwrap();
        let PublisherConfig::Broker(broker) = &config.routes[0].publisher else {
            panic!()
        };
        assert_eq!(broker.kind, PublisherKind::Http);
        assert_eq!(broker.secret.as_ref().map(Secret::expose), Some("s"));
        assert_eq!(broker.settings.requests_in_flight_max, Some(2));
    }
    let other = resolve(file, &["--publisher", "stdout"]).unwrap().1;
    assert_eq!(other.routes[0].publisher.name(), "stdout");
}

#[test]
fn what_is_written_is_kept_and_the_rest_is_the_default() {
    let file = "[store]\nretention = \"0s\"\ndedup_retention = \"7d\"\n[relay]\nbatch_events_max = 7\nclean_interval = \"5s\"\n[routes.r]\npublisher = { kind = \"stdout\" }\nretry = { base = \"2s\", attempts_max = 3, on_dead = \"skip\" }\nretry_for = [{ topic = \"slow.*\", retry = { cap = \"1h\" } }]";
    let (_, config) = resolve(file, &[]).unwrap();
    assert_eq!(config.relay.batch_events_max, 7);
    assert_eq!(config.relay.retention, Duration::ZERO);
    assert_eq!(
        (
            config.relay.dedup_retention.as_secs(),
            config.relay.clean_interval.as_secs()
        ),
        (7 * 24 * 3600, 5)
    );
    assert_eq!(config.relay.poll_max, RelayConfig::default().poll_max);
    let [slow, all] = &config.routes[0].policies[..] else {
        panic!("two policies")
    };
    assert_eq!(
        (slow.retry.attempts_max, slow.retry.cap),
        (3, Duration::from_secs(3600))
    );
    assert_eq!(all.retry.base, Duration::from_secs(2));
    assert_eq!(all.retry.cap, RetryPolicy::default().cap);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_remedy() {
    for (file, flags, expected) in [
        ("", &[][..], "has no publisher — give --publisher-url"),
        (
            "",
            &["--publisher", "redis"],
            "routes.default.publisher.url is missing",
        ),
        (
            "",
            &["--publisher", "stdout", "--publisher-url", "redis://h"],
            "no meaning for the publisher stdout",
        ),
        (
            "",
            &["--publisher-url", "mqtt://h"],
            "no broker that is known",
        ),
        (
            "[routes.a]\npublisher = { kind = \"stdout\" }",
            &["--topic", "x"],
            "the route `default`",
        ),
        (
            "[routes.a]\ntopics = []\npublisher = { kind = \"stdout\" }",
            &[],
            "there is no pattern",
        ),
        (
            "[routes.a]\ntopics = [\"x.*\"]\npublisher = { kind = \"stdout\" }\n[routes.b]\ntopics = [\"y\", \"x.z\"]\npublisher = { kind = \"stdout\" }",
            &[],
            "`x.*` of route `a` and `x.z` of route `b` overlap",
        ),
        (
            "[relay]\nbatch_events_max = 0",
            &["--publisher", "stdout"],
            "batch_events_max",
        ),
        (
            "[routes.a]\npublisher = { kind = \"stdout\" }\nretry = { attempts_max = 0 }",
            &[],
            "route=a",
        ),
    ] {
        let message = resolve(file, flags).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}
