//! One layer over another: flags beat the environment, which beats the file, key by key.

use clap::Parser;
use outbox_core::TopicPattern;
use proptest::{collection::vec, option, prelude::*, sample::select};
use toml::Value;

use super::written::{
    Kind, Leaf, configurations, configurations_of, environment, file, read, shown,
};
use crate::{
    args::{Cli, Command, GlobalArgs, RelayArgs},
    config::{Config, LogConfig, PublisherConfig, Settings, StoreConfig},
    exit::Failure,
};

/// Names that are words of the configuration as well.
const ROUTES: &[&str] = &[
    "default", "a-b_c", "kind", "url", "url_file", "x", "x_file", "routes",
];

/// One layer over another, by a list of rules: another kind leaves nothing of its table, a value
/// and its file replace each other, and else the upper value counts.
fn over(lower: &[Leaf], upper: &[Leaf]) -> Vec<Leaf> {
    let is_kind = |leaf: &&Leaf| matches!(leaf.kind, Kind::Word(_)) && leaf.key() == "kind";
    let replaced = |below: &Leaf| {
        let other_kind = upper.iter().filter(is_kind).any(|kind| {
            let table = &kind.path[..kind.path.len() - 1];
            let old = lower.iter().find(|leaf| leaf.path == kind.path);
            below.path.starts_with(table) && old.is_some_and(|old| old.value != kind.value)
        });
        let same = |leaf: &Leaf| leaf.path == below.path;
        let other_form = |leaf: &Leaf| {
            let forms = [leaf.key(), below.key()];
            let siblings = leaf.path[..leaf.path.len() - 1] == below.path[..below.path.len() - 1];
            let is_file_of = |file: &str, value| file.strip_suffix("_file") == Some(value);
            siblings && (is_file_of(forms[0], forms[1]) || is_file_of(forms[1], forms[0]))
        };
        other_kind || upper.iter().any(|leaf| same(leaf) || other_form(leaf))
    };
    let kept = lower.iter().filter(|leaf| !replaced(leaf));
    kept.chain(upper).cloned().collect()
}

/// All settings, or those that flags set and what stands beside them, so that more of them are right.
fn below_flags() -> impl Strategy<Value = Vec<Leaf>> {
    prop_oneof![
        configurations(&["default"]),
        configurations_of(&["default"], |key| key.contains(".publisher.")
            || key.contains("url")),
    ]
}

fn flags() -> impl Strategy<Value = Vec<(&'static str, Leaf)>> {
    let leaf =
        |flag: &'static str, path: &'static str, kind: Kind, values: BoxedStrategy<Value>| {
            let path: Vec<_> = path.split('.').map(str::to_owned).collect();
            option::of(values.prop_map(move |value| {
                (
                    flag,
                    Leaf {
                        path: path.clone(),
                        kind,
                        value,
                    },
                )
            }))
            .boxed()
        };
    let text = |values: &'static str| values.prop_map(Value::String).boxed();
    let word = |words: &'static [&'static str]| select(words).prop_map(Value::from).boxed();
    let topics = vec("[a-z]{1,3}\\*?", 1..3).prop_map(Value::from).boxed();
    let kinds = &["amqp", "http", "kafka", "nats", "redis", "stdout"];
    let formats = &["text", "json"];
    (
        leaf(
            "--store-url",
            "store.url",
            Kind::Secret,
            text("[a-z:/]{1,9}"),
        ),
        leaf("--schema", "store.schema", Kind::Text, text("[a-z]{1,9}")),
        leaf(
            "--log-format",
            "log.format",
            Kind::Word(formats),
            word(formats),
        ),
        leaf("--log-level", "log.level", Kind::Text, text("[a-z]{1,9}")),
        leaf(
            "--http",
            "http.listen",
            Kind::Address,
            text("127\\.0\\.0\\.1:[1-9]{1,4}"),
        ),
        leaf(
            "--publisher",
            "routes.default.publisher.kind",
            Kind::Word(kinds),
            word(kinds),
        ),
        leaf(
            "--publisher-url",
            "routes.default.publisher.url",
            Kind::Secret,
            text("redis://[a-z]{1,9}"),
        ),
        leaf("--topic", "routes.default.topics", Kind::Topics, topics),
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| {
            [a, b, c, d, e, f, g, h].into_iter().flatten().collect()
        })
}

fn parse(flags: &[(&str, Leaf)]) -> (GlobalArgs, RelayArgs) {
    let mut arguments = vec!["outbox".to_owned(), "relay".to_owned()];
    for (flag, leaf) in flags {
        let values = match &leaf.value {
            Value::Array(values) => &values[..],
            value => std::slice::from_ref(value),
        };
        arguments.extend(
            values
                .iter()
                .map(|value| format!("{flag}={}", value.as_str().unwrap())),
        );
    }
    let cli = Cli::try_parse_from(arguments).unwrap();
    let Command::Relay(args) = cli.command else {
        panic!("relay was asked for")
    };
    (cli.global, args)
}

/// What a relay would run with, or why it would not, with secrets.
fn resolve(settings: Settings, flags: &[(&str, Leaf)]) -> [String; 3] {
    let (global, args) = parse(flags);
    let log = LogConfig::new(&settings.log, &global, "info");
    let store = StoreConfig::new(settings.store.clone(), &global);
    let store = store.map(|store| format!("{store:?} {}", store.url.expose()));
    let url = |publisher: &PublisherConfig| match publisher {
        PublisherConfig::Stdout => None,
        PublisherConfig::Broker(broker) => Some(broker.url.expose().to_owned()),
    };
    let relay = Config::new(settings, &args).map(|config| {
        let urls: Vec<_> = config
            .routes
            .iter()
            .map(|route| url(&route.publisher))
            .collect();
        format!("{config:?} {urls:?}")
    });
    let told =
        |answer: Result<String, Failure>| answer.unwrap_or_else(|failure| failure.to_string());
    [format!("{log:?}"), told(store), told(relay)]
}

proptest! {
    #[test]
    fn the_environment_beats_the_file_key_by_key(lower in configurations(ROUTES), upper in configurations(ROUTES)) {
        let layered = read(&file(&lower), environment(&upper)).map_err(TestCaseError::fail)?;
        let expected = read(&file(&over(&lower, &upper)), vec![]).map_err(TestCaseError::fail)?;
        prop_assert_eq!(shown(&layered), shown(&expected));
    }

    #[test]
    fn flags_beat_both_key_by_key(by_file: bool, lower in below_flags(), flags in flags()) {
        let chosen: Vec<Leaf> = flags.iter().map(|(_, leaf)| leaf.clone()).collect();
        let mut below = lower.clone();
        // Without a kind the settings are those of Redis, the only kind that has any.
        let has_kind = |leaves: &[Leaf]| leaves.iter().any(|leaf| leaf.kind == KINDS && leaf.key() == "kind");
        if has_kind(&chosen) && !has_kind(&below) {
            let path = ["routes", "default", "publisher", "kind"].map(str::to_owned).to_vec();
            below.push(Leaf { path, kind: KINDS, value: Value::from("redis") });
        }
        let written = read(&file(&over(&below, &chosen)), vec![]).map_err(TestCaseError::fail)?;
        let expected = resolve(written, &[]);
        let settings = if by_file { read(&file(&lower), vec![]) } else { read("", environment(&lower)) };
        prop_assert_eq!(resolve(settings.map_err(TestCaseError::fail)?, &flags), expected);
    }

    /// The short form of a list, for variables.
    #[test]
    fn topics_with_commas_are_a_list(topics in vec("[a-z.]{1,4}\\*?", 1..4), blank in " {0,2}") {
        let text = topics.join(&format!("{blank},{blank}"));
        let settings = read("", vec![("OUTBOX__ROUTES__R__TOPICS".into(), text.into())]).map_err(TestCaseError::fail)?;
        let expected: Vec<TopicPattern> = topics.iter().map(|topic| topic.parse().unwrap()).collect();
        prop_assert_eq!(&settings.routes["r"].topics.as_ref().unwrap().0, &expected);
    }
}

const KINDS: Kind = Kind::Word(&["amqp", "http", "kafka", "nats", "redis", "stdout"]);
