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
    not(any(feature = "postgres", feature = "sqlite")),
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
    not(any(
        feature = "amqp",
        feature = "http",
        feature = "kafka",
        feature = "nats",
        feature = "redis"
    )),
    expect(dead_code, reason = "there is no publisher to read it")
)]
pub(crate) struct BrokerConfig {
    pub(crate) kind: PublisherKind,
    pub(crate) url: Secret,
    pub(crate) encoding: Encoding,
    #[cfg_attr(
        not(feature = "http"),
        expect(dead_code, reason = "only webhooks are signed")
    )]
    pub(crate) secret: Option<Secret>,
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "only librdkafka has properties")
    )]
    pub(crate) properties: Option<Secret>,
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
    // Settings without a kind or a URL that tells it are those of Redis.
    let of_url = || route.publisher.url.as_ref().and_then(kind_of_url);
    let had = route.publisher.kind.or_else(of_url);
    let had = had.unwrap_or(PublisherKind::Redis);
    if let Some(url) = &args.publisher_url {
        route.publisher.url = Some(url.clone());
        route.publisher.url_file = None;
    }
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
                "configuration: {what} — give --publisher-url redis://host:6379 or \
                 amqp://host:5672, or --publisher stdout, or set {key}"
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
    let properties = value_or_file(
        &format!("{key}.properties"),
        settings.properties.clone(),
        settings.properties_file.as_deref(),
    )?;
    let secret = value_or_file(
        &format!("{key}.secret"),
        settings.secret.clone(),
        settings.secret_file.as_deref(),
    )?;
    Ok(PublisherConfig::Broker(Box::new(BrokerConfig {
        kind,
        url,
        encoding: encoding(&key, &settings)?,
        secret,
        properties,
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
mod tests;
