//! From what was written to checked settings, with the flags on top.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use outbox_core::{BreakerPolicy, Encoding, RelayConfig, RetryPolicy, TopicPattern, TopicSet};

use super::{
    defaults::{breaker, duration, relay, retry},
    model::{
        EncodingName, LogFormat, LogSettings, Partitioning, PublisherKind, PublisherSettings,
        RouteSettings, Settings, StoreKind, StoreSettings, Topics,
    },
    overlap,
    secret::{Secret, value_or_file},
};
use crate::{
    args::{GlobalArgs, RelayArgs},
    exit::Failure,
};

/// The route that flags set and that needs no file.
const DEFAULT_ROUTE: &str = "default";

/// What `relay` runs with.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) relay: RelayConfig,
    pub(crate) routes: Vec<RouteConfig>,
    pub(crate) http: Option<SocketAddr>,
}

/// The store. What is `None` keeps the default of the store's crate.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "there is no store to read it")
)]
pub(crate) struct StoreConfig {
    pub(crate) kind: StoreKind,
    pub(crate) url: Secret,
    pub(crate) schema: Option<String>,
    pub(crate) pool_size: Option<u32>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) statement_timeout: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) workers: Option<usize>,
    pub(crate) keep_done: Option<bool>,
    pub(crate) partitions: Option<Partitioning>,
    pub(crate) event_bytes_max: Option<usize>,
    pub(crate) retention: Option<Duration>,
    pub(crate) dedup_retention: Option<Duration>,
}

/// A route and its publisher.
#[derive(Debug)]
pub(crate) struct RouteConfig {
    pub(crate) name: String,
    pub(crate) topics: TopicSet,
    pub(crate) publisher: PublisherConfig,
    pub(crate) policies: Vec<TopicPolicy>,
    pub(crate) strict_order: bool,
    pub(crate) breaker: BreakerPolicy,
}

/// A retry policy for some topics.
#[derive(Debug)]
pub(crate) struct TopicPolicy {
    pub(crate) topics: TopicPattern,
    pub(crate) retry: RetryPolicy,
}

/// A publisher.
#[derive(Debug)]
pub(crate) enum PublisherConfig {
    Stdout,
    Broker(Box<BrokerConfig>),
}

/// A publisher to a broker. What is not set keeps the default of the publisher's crate.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "there is no publisher to read it")
)]
pub(crate) struct BrokerConfig {
    pub(crate) kind: PublisherKind,
    pub(crate) url: Secret,
    pub(crate) encoding: Encoding,
    pub(crate) settings: PublisherSettings,
}

impl PublisherConfig {
    /// The kind's name, for log lines.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Stdout => PublisherKind::Stdout.name(),
            Self::Broker(broker) => broker.kind.name(),
        }
    }
}

/// How log lines look and which are written.
#[derive(Debug)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    pub(crate) level: String,
}

impl LogConfig {
    /// `level` is what counts when nothing else was said.
    pub(crate) fn new(settings: &LogSettings, global: &GlobalArgs, level: &str) -> Self {
        let levels = global.log_level.as_ref().or(settings.level.as_ref());
        Self {
            format: global.log_format.or(settings.format).unwrap_or_default(),
            level: levels.map_or(level, String::as_str).to_owned(),
        }
    }
}

impl StoreConfig {
    /// Checks what every store needs; the store's crate checks the rest.
    pub(crate) fn new(settings: StoreSettings, global: &GlobalArgs) -> Result<Self, Failure> {
        let url = match global.store_url.clone() {
            Some(url) => Some(url),
            None => value_or_file(
                "store.url",
                settings.url.clone(),
                settings.url_file.as_deref(),
            )?,
        };
        let url = url.ok_or_else(|| {
            Failure::usage(
                "configuration: no database is named — set OUTBOX__STORE__URL, or store.url or \
                 store.url_file in the file, or --store-url postgres://host/database or \
                 sqlite:path/to/file",
            )
        })?;
        Ok(Self {
            kind: settings.kind_for(Some(&url)),
            url,
            schema: global.schema.clone().or(settings.schema),
            pool_size: settings.pool_size,
            connect_timeout: duration(settings.connect_timeout),
            statement_timeout: duration(settings.statement_timeout),
            lease: duration(settings.lease),
            workers: settings.workers,
            keep_done: settings.keep_done,
            partitions: settings.partitions,
            event_bytes_max: settings.event_bytes_max,
            retention: duration(settings.retention),
            dedup_retention: duration(settings.dedup_retention),
        })
    }
}

impl Config {
    /// What a relay needs beside its store.
    pub(crate) fn new(settings: Settings, args: &RelayArgs) -> Result<Self, Failure> {
        let parts = Parts::new(settings, args)?;
        let routes = parts.routes.into_iter().map(|(_, route)| route);
        Ok(Self {
            relay: parts.relay?,
            routes: routes.collect::<Result<_, _>>()?,
            http: parts.http,
        })
        .and_then(|config| overlap::refuse(&config.routes).map(|()| config))
    }
}

/// What a relay needs beside its store, each part right or wrong for itself.
pub(crate) struct Parts {
    pub(crate) relay: Result<RelayConfig, Failure>,
    /// By name.
    pub(crate) routes: Vec<(String, Result<RouteConfig, Failure>)>,
    http: Option<SocketAddr>,
}

impl Parts {
    /// Fails where flags and routes don't fit, so that it is not known what the routes are.
    pub(crate) fn new(settings: Settings, args: &RelayArgs) -> Result<Self, Failure> {
        let relay = relay(settings.relay, &settings.store);
        let routes = with_flags(settings.routes, args)?.into_iter();
        Ok(Self {
            relay: relay.validate().map(|()| relay).map_err(Failure::from),
            routes: routes
                .map(|(name, route)| (name.clone(), RouteConfig::new(name, route)))
                .collect(),
            http: args.http.or(settings.http.listen),
        })
    }
}

/// Lays the flags over the route `default`, which they make where there is no route at all.
fn with_flags(
    mut routes: BTreeMap<String, RouteSettings>,
    args: &RelayArgs,
) -> Result<BTreeMap<String, RouteSettings>, Failure> {
    let has_flags =
        args.publisher.is_some() || args.publisher_url.is_some() || !args.topics.is_empty();
    if routes.is_empty() {
        routes.insert(DEFAULT_ROUTE.to_owned(), RouteSettings::default());
    }
    if !has_flags {
        return Ok(routes);
    }
    let route = routes.get_mut(DEFAULT_ROUTE).ok_or_else(|| {
        Failure::usage(
            "configuration: --publisher, --publisher-url and --topic set the route `default`, \
             which the configuration does not have — rename a route to `default`, or set them there",
        )
    })?;
    if !args.topics.is_empty() {
        route.topics = Some(Topics(args.topics.clone()));
    }
    if let Some(url) = &args.publisher_url {
        route.publisher.url = Some(url.clone());
        route.publisher.url_file = None;
    }
    // Settings without a kind are those of Redis, the only kind that has any.
    let had = route.publisher.kind.unwrap_or(PublisherKind::Redis);
    if let Some(kind) = args.publisher
        && had == kind
    {
        route.publisher.kind = Some(kind);
    } else if let Some(kind) = args.publisher {
        // Settings of another kind of publisher would have no meaning for this one.
        route.publisher = PublisherSettings {
            kind: Some(kind),
            url: args.publisher_url.clone(),
            ..PublisherSettings::default()
        };
    }
    Ok(routes)
}

impl RouteConfig {
    fn new(name: String, settings: RouteSettings) -> Result<Self, Failure> {
        let topics = match settings.topics {
            Some(Topics(patterns)) => TopicSet::new(patterns)?,
            None => TopicSet::all(),
        };
        let mut policies = Vec::new();
        for special in settings.retry_for {
            let retry = retry(
                &special.retry,
                retry(&settings.retry, RetryPolicy::default()),
            );
            policies.push(TopicPolicy {
                topics: special.topic.0,
                retry,
            });
        }
        let general = retry(&settings.retry, RetryPolicy::default());
        policies.push(TopicPolicy {
            topics: TopicPattern::All,
            retry: general,
        });
        for policy in &policies {
            policy
                .retry
                .validate()
                .map_err(|error| error.context("route", &name))?;
        }
        let breaker = breaker(&settings.breaker);
        breaker
            .validate()
            .map_err(|error| error.context("route", &name))?;
        Ok(Self {
            publisher: publisher(&name, settings.publisher)?,
            name,
            topics,
            policies,
            strict_order: settings.strict_order.unwrap_or(false),
            breaker,
        })
    }
}

fn publisher(route: &str, settings: PublisherSettings) -> Result<PublisherConfig, Failure> {
    let key = format!("routes.{route}.publisher");
    let url = value_or_file(
        &format!("{key}.url"),
        settings.url.clone(),
        settings.url_file.as_deref(),
    )?;
    let kind = settings
        .kind
        .or_else(|| url.as_ref().and_then(kind_of_url))
        // No part of the URL is shown: without a scheme all of it may be a secret.
        .ok_or_else(|| match &url {
            Some(_) => format!("{key}.url is of no broker that is known here"),
            None => format!("route `{route}` has no publisher"),
        })
        .map_err(|what| {
            Failure::usage(format!(
                "configuration: {what} — give --publisher-url redis://host:6379 or --publisher \
                 stdout, or set {key}"
            ))
        })?;
    if let Some(name) = settings.without_meaning_for(kind) {
        let kind = kind.name();
        return Err(Failure::usage(format!(
            "configuration: {key}.{name} has no meaning for the publisher {kind} — remove it, or \
             choose another kind"
        )));
    }
    let Some(example) = kind.url_example() else {
        return Ok(PublisherConfig::Stdout);
    };
    let url = url.ok_or_else(|| {
        Failure::usage(format!(
            "configuration: {key}.url is missing — set it, as {example}, or {key}.url_file"
        ))
    })?;
    Ok(PublisherConfig::Broker(Box::new(BrokerConfig {
        kind,
        url,
        encoding: encoding(&key, &settings)?,
        settings,
    })))
}

fn encoding(key: &str, settings: &PublisherSettings) -> Result<Encoding, Failure> {
    match (settings.encoding, &settings.source) {
        (None | Some(EncodingName::Plain), None) => Ok(Encoding::Plain),
        (Some(EncodingName::Debezium), None) => Ok(Encoding::Debezium),
        (Some(EncodingName::CloudEvents), Some(source)) if !source.is_empty() => {
            let source = source.clone();
            Ok(Encoding::CloudEvents { source })
        }
        (Some(EncodingName::CloudEvents), _) => Err(Failure::usage(format!(
            "configuration: {key}.source is missing — CloudEvents need a URI reference that names \
             the service, as \"/shop/orders\""
        ))),
        (_, Some(_)) => Err(Failure::usage(format!(
            "configuration: {key}.source is of CloudEvents only — remove it, or set \
             {key}.encoding = \"cloudevents\""
        ))),
    }
}

fn kind_of_url(url: &Secret) -> Option<PublisherKind> {
    let (scheme, _) = url.expose().split_once("://")?;
    PublisherKind::of_scheme(scheme)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_documented_file_is_right_and_its_defaults_are_ours() {
        let docs = include_str!("../../docs.md");
        let file = docs
            .split("```toml")
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        // What is commented out is as right as the rest.
        let all = file.replace("\n# ", "\n").replace("url_file = ", "url = ");
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
                &["--publisher-url", "amqp://h"],
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
}
