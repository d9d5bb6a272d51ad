//! Settings as people write them: any value of any key, in a file or in the environment.

use std::{collections::BTreeMap, ffi::OsString, fs, time::Duration};

use proptest::{collection::vec, prelude::*, sample::select};
use toml::{Table, Value};

use crate::config::{
    Secret,
    layers::load,
    model::{RouteSettings, Settings},
};

/// Stands in a path for the name of a route.
pub(super) const ROUTE: &str = "*";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word(&'static [&'static str]),
    Text,
    Secret,
    Path,
    Span,
    /// A whole number up to this.
    Number(u64),
    Bool,
    Address,
    Topics,
    Names,
    RetryFor,
}

const U32: Kind = Kind::Number(u32::MAX as u64);
/// TOML has no larger number.
const USIZE: Kind = Kind::Number(i64::MAX as u64);

/// Every key there is.
pub(super) const KEYS: &[(&str, Kind)] = &[
    ("store.kind", Kind::Word(&["postgres-queue", "sqlite"])),
    ("store.url", Kind::Secret),
    ("store.url_file", Kind::Path),
    ("store.schema", Kind::Text),
    ("store.pool_size", U32),
    ("store.connect_timeout", Kind::Span),
    ("store.statement_timeout", Kind::Span),
    ("store.lease", Kind::Span),
    ("store.workers", USIZE),
    ("store.keep_done", Kind::Bool),
    (
        "store.partitions",
        Kind::Word(&["none", "daily", "monthly"]),
    ),
    ("store.event_bytes_max", USIZE),
    ("store.retention", Kind::Span),
    ("store.dedup_retention", Kind::Span),
    ("relay.batch_events_max", USIZE),
    ("relay.batch_bytes_max", USIZE),
    ("relay.poll_min", Kind::Span),
    ("relay.poll_max", Kind::Span),
    ("relay.publish_timeout", Kind::Span),
    ("relay.shutdown_grace", Kind::Span),
    ("relay.acquire_interval", Kind::Span),
    ("relay.inspect_interval", Kind::Span),
    ("relay.clean_interval", Kind::Span),
    ("relay.store_backoff_max", Kind::Span),
    ("relay.worker", Kind::Text),
    ("routes.*.topics", Kind::Topics),
    ("routes.*.strict_order", Kind::Bool),
    (
        "routes.*.publisher.kind",
        Kind::Word(&["amqp", "http", "kafka", "nats", "redis", "stdout"]),
    ),
    ("routes.*.publisher.url", Kind::Secret),
    ("routes.*.publisher.url_file", Kind::Path),
    ("routes.*.publisher.ca_file", Kind::Path),
    ("routes.*.publisher.publish_timeout", Kind::Span),
    ("routes.*.publisher.connect_timeout", Kind::Span),
    (
        "routes.*.publisher.encoding",
        Kind::Word(&["plain", "cloudevents", "debezium"]),
    ),
    ("routes.*.publisher.source", Kind::Text),
    ("routes.*.publisher.transactional", Kind::Bool),
    ("routes.*.publisher.pipeline_events_max", USIZE),
    ("routes.*.publisher.pipeline_bytes_max", USIZE),
    ("routes.*.publisher.stream_entries_max", USIZE),
    ("routes.*.publisher.replicas_min", U32),
    ("routes.*.publisher.field_bytes_max", USIZE),
    ("routes.*.publisher.credentials_file", Kind::Path),
    ("routes.*.publisher.nkey_file", Kind::Path),
    ("routes.*.publisher.in_flight_events_max", USIZE),
    ("routes.*.publisher.in_flight_bytes_max", USIZE),
    ("routes.*.publisher.message_bytes_max", USIZE),
    ("routes.*.publisher.streams", Kind::Names),
    ("routes.*.publisher.duplicate_window_min", Kind::Span),
    ("routes.*.publisher.inbox_prefix", Kind::Text),
    ("routes.*.publisher.domain", Kind::Text),
    ("routes.*.publisher.secret", Kind::Secret),
    ("routes.*.publisher.secret_file", Kind::Path),
    ("routes.*.publisher.requests_in_flight_max", USIZE),
    ("routes.*.publisher.producers_max", USIZE),
    ("routes.*.publisher.batch_bytes_max", USIZE),
    (
        "routes.*.publisher.compression",
        Kind::Word(&["none", "lz4", "snappy", "gzip"]),
    ),
    ("routes.*.publisher.properties", Kind::Secret),
    ("routes.*.publisher.properties_file", Kind::Path),
    ("routes.*.publisher.heartbeat", Kind::Span),
    ("routes.*.publisher.declare_exchange", Kind::Text),
    (
        "routes.*.publisher.declare_exchange_type",
        Kind::Word(&["topic", "direct", "fanout"]),
    ),
    ("routes.*.publisher.declare_queue", Kind::Text),
    (
        "routes.*.publisher.declare_queue_type",
        Kind::Word(&["quorum", "classic", "stream"]),
    ),
    ("routes.*.publisher.declare_binding_key", Kind::Text),
    ("routes.*.retry.base", Kind::Span),
    ("routes.*.retry.factor", U32),
    ("routes.*.retry.cap", Kind::Span),
    ("routes.*.retry.attempts_max", U32),
    ("routes.*.retry.crashes_max", U32),
    ("routes.*.retry.topic_patience", Kind::Span),
    ("routes.*.retry.on_dead", Kind::Word(&["hold-key", "skip"])),
    ("routes.*.retry_for", Kind::RetryFor),
    ("routes.*.breaker.base", Kind::Span),
    ("routes.*.breaker.cap", Kind::Span),
    ("routes.*.breaker.probe_timeout", Kind::Span),
    ("http.listen", Kind::Address),
    ("log.format", Kind::Word(&["text", "json"])),
    ("log.level", Kind::Text),
];

/// One setting.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) path: Vec<String>,
    pub(super) kind: Kind,
    pub(super) value: Value,
}

impl Leaf {
    pub(super) fn key(&self) -> &str {
        self.path.last().unwrap()
    }
}

/// Any key but lists of policies, with any value.
pub(super) fn leaves() -> BoxedStrategy<Leaf> {
    leaves_of(|key| !key.ends_with("retry_for"))
}

/// Any of some keys, with any value.
pub(super) fn leaves_of(wanted: impl Fn(&str) -> bool) -> BoxedStrategy<Leaf> {
    let keys = KEYS.iter().filter(|(key, _)| wanted(key));
    select(keys.copied().collect::<Vec<_>>())
        .prop_flat_map(|(key, kind)| leaf(key, kind, "default"))
        .boxed()
}

/// Settings of a whole configuration, each key once.
pub(super) fn configurations(routes: &'static [&'static str]) -> BoxedStrategy<Vec<Leaf>> {
    configurations_of(routes, |_| true)
}

/// Settings of some keys, each once.
pub(super) fn configurations_of(
    routes: &'static [&'static str],
    wanted: impl Fn(&str) -> bool,
) -> BoxedStrategy<Vec<Leaf>> {
    let keys: Vec<_> = KEYS
        .iter()
        .filter(|(key, _)| wanted(key))
        .copied()
        .collect();
    let single = (select(keys), select(routes));
    vec(
        single.prop_flat_map(|((key, kind), route)| leaf(key, kind, route)),
        0..12,
    )
    .prop_map(|leaves| {
        let by_path: BTreeMap<_, _> = leaves
            .into_iter()
            .map(|leaf| (leaf.path.clone(), leaf))
            .collect();
        by_path.into_values().collect()
    })
    .boxed()
}

fn leaf(key: &'static str, kind: Kind, route: &'static str) -> impl Strategy<Value = Leaf> {
    let name = |part: &str| if part == ROUTE { route } else { part }.to_owned();
    let path: Vec<_> = key.split('.').map(name).collect();
    values(kind).prop_map(move |value| Leaf {
        path: path.clone(),
        kind,
        value,
    })
}

fn values(kind: Kind) -> BoxedStrategy<Value> {
    let text = |strategy: BoxedStrategy<String>| strategy.prop_map(Value::String).boxed();
    match kind {
        Kind::Word(words) => text(select(words).prop_map(str::to_owned).boxed()),
        Kind::Text | Kind::Secret => text(texts().boxed()),
        Kind::Path => text("[a-z]{1,8}".boxed()),
        Kind::Span => text(
            spans()
                .prop_map(|span| humantime::format_duration(span).to_string())
                .boxed(),
        ),
        Kind::Number(most) => prop_oneof![0..=9u64, 0..=most, Just(most)]
            .prop_map(|number| Value::Integer(number.try_into().unwrap()))
            .boxed(),
        Kind::Bool => any::<bool>().prop_map(Value::Boolean).boxed(),
        Kind::Address => text(
            (any::<std::net::IpAddr>(), any::<u16>())
                .prop_map(|parts| std::net::SocketAddr::from(parts).to_string())
                .boxed(),
        ),
        Kind::Topics => vec(patterns(), 0..4)
            .prop_map(|topics| Value::Array(topics.into_iter().map(Value::String).collect()))
            .boxed(),
        Kind::Names => vec("[A-Z]{1,9}", 0..4).prop_map(Value::from).boxed(),
        Kind::RetryFor => vec((patterns(), spans()), 0..3)
            .prop_map(|policies| Value::Array(policies.into_iter().map(retry_for).collect()))
            .boxed(),
    }
}

fn retry_for((topic, cap): (String, Duration)) -> Value {
    let cap = Value::String(humantime::format_duration(cap).to_string());
    let retry = Table::from_iter([("cap".to_owned(), cap)]);
    Value::Table(Table::from_iter([
        ("topic".to_owned(), Value::String(topic)),
        ("retry".to_owned(), Value::Table(retry)),
    ]))
}

/// Any text, often one that looks like another type of value.
fn texts() -> impl Strategy<Value = String> {
    let others = [
        "",
        "4",
        "true",
        "[\"a\"]",
        "{ a = 1 }",
        "\"a\"",
        " a ",
        "a\nb = 1",
        "1979-05-27",
        "#",
        "'",
    ];
    prop_oneof![
        1 => select(others.map(str::to_owned).to_vec()),
        2 => "[^\0]{0,12}",
    ]
}

fn patterns() -> impl Strategy<Value = String> {
    "[^*\0]{1,6}\\*?|\\*"
}

/// Any duration that is written in short.
fn spans() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0u64..100_000).prop_map(Duration::from_millis),
        (any::<u32>(), 0u32..1_000_000_000).prop_map(|(s, ns)| Duration::new(s.into(), ns)),
    ]
}

/// As a file.
pub(super) fn file<'a>(leaves: impl IntoIterator<Item = &'a Leaf>) -> String {
    let mut root = Table::new();
    for leaf in leaves {
        let (last, sections) = leaf.path.split_last().unwrap();
        let mut table = &mut root;
        for section in sections {
            let below = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            table = below.as_table_mut().unwrap();
        }
        table.insert(last.clone(), leaf.value.clone());
    }
    toml::to_string(&root).unwrap()
}

/// As variables.
pub(super) fn environment<'a>(
    leaves: impl IntoIterator<Item = &'a Leaf>,
) -> Vec<(OsString, OsString)> {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    leaves
        .into_iter()
        .map(|leaf| (variable(&leaf.path).into(), text(&leaf.value).into()))
        .collect()
}

pub(super) fn variable(path: &[String]) -> String {
    format!("OUTBOX__{}", path.join("__")).to_ascii_uppercase()
}

/// Reads a file of this text and these variables; a failure as it is told.
pub(super) fn read(text: &str, environment: Vec<(OsString, OsString)>) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.toml");
    fs::write(&path, text).unwrap();
    load(Some(&path), environment).map_err(|failure| failure.to_string())
}

/// All that was read, secrets too.
pub(super) fn shown(settings: &Settings) -> String {
    let secrets = |route: &RouteSettings| {
        let publisher = &route.publisher;
        [&publisher.url, &publisher.secret]
            .map(|secret| secret.as_ref().map(|secret| secret.expose().to_owned()))
    };
    let routes: Vec<_> = settings.routes.values().map(secrets).collect();
    let store = settings.store.url.as_ref().map(Secret::expose);
    format!("{settings:?} {store:?} {routes:?}")
}
