//! Each setting by itself: what is written is what is used, and the rest keeps its default.

use std::time::Duration;

use clap::Parser;
use outbox_core::{RetryPolicy, TopicPattern};
use proptest::prelude::*;

use super::written::{Kind, Leaf, environment, file, leaves, leaves_of, read};
use crate::{
    args::{Cli, GlobalArgs},
    config::{
        LogConfig, Secret, StoreConfig,
        defaults::{breaker, relay, retry},
        model::{RouteSettings, Settings},
    },
};

/// The value as `Debug` shows it where it is used.
fn debug(leaf: &Leaf) -> String {
    let text = || leaf.value.as_str().unwrap();
    match leaf.kind {
        Kind::Word(_) if text() == "cloudevents" => "CloudEvents".to_owned(),
        Kind::Word(_) => text().split('-').map(capital).collect(),
        Kind::Secret => "***".to_owned(),
        Kind::Text | Kind::Path => format!("{:?}", text()),
        Kind::Span => format!("{:?}", span(text())),
        Kind::Address => text().to_owned(),
        Kind::Topics => {
            let patterns = leaf.value.as_array().unwrap().iter();
            let parsed: Vec<TopicPattern> = patterns
                .map(|p| p.as_str().unwrap().parse().unwrap())
                .collect();
            format!("Topics({parsed:?})")
        }
        Kind::Names => {
            let names = leaf.value.as_array().unwrap().iter();
            let names: Vec<_> = names.map(|name| name.as_str().unwrap()).collect();
            format!("Names({names:?})")
        }
        _ => leaf.value.to_string(),
    }
}

fn span(text: &str) -> Duration {
    humantime::parse_duration(text).unwrap()
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

/// A structure's `Debug` with this value in the place of its default.
fn with(default: &str, key: &str, value: &str) -> String {
    let opening = format!(" {key}: ");
    let start = default.find(&opening).expect("the key has its field") + opening.len();
    let rest = &default[start..];
    let old = &rest[..rest.find(", ").or_else(|| rest.find(" }")).unwrap()];
    let new = match old {
        "None" => format!("Some({value})"),
        _ => value.to_owned(),
    };
    format!("{}{new}{}", &default[..start], &rest[old.len()..])
}

/// The section of the key, as it was read.
fn section(settings: &Settings, leaf: &Leaf) -> String {
    let route = || settings.routes.get("default").cloned().unwrap_or_default();
    match leaf.path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["store", _] => format!("{:?}", settings.store),
        ["relay", _] => format!("{:?}", settings.relay),
        ["http", _] => format!("{:?}", settings.http),
        ["log", _] => format!("{:?}", settings.log),
        ["routes", _, "publisher", _] => format!("{:?}", route().publisher),
        ["routes", _, "retry", _] => format!("{:?}", route().retry),
        ["routes", _, "breaker", _] => format!("{:?}", route().breaker),
        _ => {
            let RouteSettings {
                topics,
                strict_order,
                ..
            } = route();
            format!("{{ topics: {topics:?}, strict_order: {strict_order:?} }}")
        }
    }
}

/// What is configured by the section of the key, where its defaults are those of the core.
fn resolved(settings: &Settings, leaf: &Leaf) -> Option<String> {
    let route = settings.routes.get("default").cloned().unwrap_or_default();
    match leaf.path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["store", "url_file"] => None,
        ["store", _] => {
            let mut store = settings.store.clone();
            store.url.get_or_insert(Secret::new("postgres://h"));
            Some(format!(
                "{:?}",
                StoreConfig::new(store, &no_flags()).unwrap()
            ))
        }
        ["relay", _] => Some(format!(
            "{:?}",
            relay(settings.relay.clone(), &settings.store)
        )),
        ["log", _] => Some(format!(
            "{:?}",
            LogConfig::new(&settings.log, &no_flags(), "info")
        )),
        ["routes", _, "retry", _] => {
            Some(format!("{:?}", retry(&route.retry, RetryPolicy::default())))
        }
        ["routes", _, "breaker", _] => Some(format!("{:?}", breaker(&route.breaker))),
        _ => None,
    }
}

fn no_flags() -> GlobalArgs {
    Cli::try_parse_from(["outbox", "relay"]).unwrap().global
}

proptest! {
    #[test]
    fn a_setting_is_read_as_it_is_written_in_file_and_environment(leaf in leaves()) {
        let value = match leaf.kind {
            Kind::Span => format!("Span({})", debug(&leaf)),
            _ => debug(&leaf),
        };
        let default = section(&Settings::default(), &leaf);
        let expected = with(&default, leaf.key(), &value);
        for settings in [read(&file([&leaf]), vec![]), read("", environment([&leaf]))] {
            let settings = settings.map_err(TestCaseError::fail)?;
            prop_assert_eq!(section(&settings, &leaf), &*expected);
            let route = settings.routes.get("default");
            let publisher = route.map(|route| &route.publisher);
            let of_publisher = publisher.and_then(|p| p.url.as_ref().or(p.secret.as_ref()).or(p.properties.as_ref()));
            let secret = settings.store.url.as_ref().or(of_publisher);
            if leaf.kind == Kind::Secret {
                prop_assert_eq!(secret.map(Secret::expose), leaf.value.as_str());
            }
        }
    }

    #[test]
    fn a_setting_reaches_what_it_configures_and_the_rest_keeps_its_default(leaf in leaves()) {
        let settings = read(&file([&leaf]), vec![]).map_err(TestCaseError::fail)?;
        let value = match leaf.key() {
            "worker" => format!("WorkerId({})", debug(&leaf)),
            _ => debug(&leaf),
        };
        let default = resolved(&Settings::default(), &leaf);
        // The URL of the default stands for one that must be there.
        let expected = default.map(|default| match leaf.key() {
            "url" => default,
            key => with(&default, key, &value),
        });
        // The kind that no one wrote is that of the URL.
        let of_a_file = leaf.key() == "url" && leaf.value.as_str().unwrap().starts_with("sqlite:");
        prop_assume!(!of_a_file);
        prop_assert_eq!(resolved(&settings, &leaf), expected);
    }

    #[test]
    fn retention_is_of_the_store_and_reaches_the_relay_that_cleans(leaf in leaves_of(|key| key.ends_with("retention"))) {
        let settings = read(&file([&leaf]), vec![]).map_err(TestCaseError::fail)?;
        let default = format!("{:?}", relay(Settings::default().relay, &Settings::default().store));
        let expected = with(&default, leaf.key(), &debug(&leaf));
        prop_assert_eq!(format!("{:?}", relay(settings.relay.clone(), &settings.store)), expected);
    }
}
