//! Wrong keys, words and values: refused with a hint, and what was written is never shown.

use std::collections::BTreeSet;

use proptest::{
    option,
    prelude::*,
    sample::{Index, select},
};
use toml::{Table, Value};

use super::written::{KEYS, Kind, Leaf, ROUTE, environment, file, read, variable};

/// What a value holds that must not come out.
const SECRET: &str = "s3cret";

#[derive(Debug, Clone)]
enum Slip {
    Left(Index),
    Added(Index, char),
    Other(Index, char),
    Swapped(Index),
}

fn slips() -> impl Strategy<Value = Slip> {
    let letters = || {
        prop_oneof![4 => "[a-z_]", 1 => "[-A-Z0-9é .`\"\n]"]
            .prop_map(|text| text.chars().next().unwrap())
    };
    prop_oneof![
        any::<Index>().prop_map(Slip::Left),
        (any::<Index>(), letters()).prop_map(|(at, c)| Slip::Added(at, c)),
        (any::<Index>(), letters()).prop_map(|(at, c)| Slip::Other(at, c)),
        any::<Index>().prop_map(Slip::Swapped),
    ]
}

fn misspell(right: &str, slip: &Slip) -> String {
    let mut letters: Vec<char> = right.chars().collect();
    match slip {
        Slip::Left(at) => drop(letters.remove(at.index(letters.len()))),
        Slip::Added(at, c) => letters.insert(at.index(letters.len() + 1), *c),
        Slip::Other(at, c) => letters[at.index(right.len())] = *c,
        Slip::Swapped(at) => {
            let at = at.index(letters.len() - 1);
            letters.swap(at, at + 1);
        }
    }
    letters.into_iter().collect()
}

/// The names that a table may have.
fn known(section: &[&str]) -> BTreeSet<&'static str> {
    let names = KEYS.iter().filter_map(|(key, _)| {
        let path: Vec<&'static str> = key.split('.').collect();
        let is_here = path.len() > section.len() && path.iter().zip(section).all(|(a, b)| a == b);
        is_here.then(|| path[section.len()])
    });
    names.collect()
}

/// A key with one of its names misspelt: its path, the place of the wrong name in it, and the names
/// that are one slip away from it.
#[derive(Debug, Clone)]
struct Misspelt {
    path: Vec<String>,
    at: usize,
    meant: Vec<&'static str>,
}

fn misspelt() -> impl Strategy<Value = Misspelt> {
    let made = |((key, _), at, slip): (&'static (&'static str, Kind), Index, Slip)| {
        let names: Vec<&str> = key.split('.').collect();
        let at = at.index(names.len());
        if names[at] == ROUTE {
            return None;
        }
        let wrong = misspell(names[at], &slip);
        let known = known(&names[..at]);
        if known.contains(&*wrong) {
            return None;
        }
        let near = |name: &&str| strsim::damerau_levenshtein(name, &wrong) == 1;
        let mut path: Vec<_> = names.iter().map(|name| name.replace(ROUTE, "r")).collect();
        path[at].clone_from(&wrong);
        Some(Misspelt {
            path,
            at,
            meant: known.into_iter().filter(near).collect(),
        })
    };
    (
        select(KEYS.iter().collect::<Vec<_>>()),
        any::<Index>(),
        slips(),
    )
        .prop_filter_map("no wrong name", made)
}

fn leaf(path: &[String], value: Value) -> Leaf {
    Leaf {
        path: path.to_vec(),
        kind: Kind::Text,
        value,
    }
}

/// Values of any type that hold the secret.
fn secrets() -> impl Strategy<Value = Value> {
    let texts = prop_oneof![
        Just(SECRET.to_owned()),
        Just(format!("*{SECRET}")),
        ".{0,4}\"?".prop_map(|around| format!("{around}{SECRET}{around}")),
        "[a-z]{1,4}".prop_map(|scheme| format!("{scheme}://u:{SECRET}@h*h")),
    ];
    texts.prop_flat_map(|text| {
        let text = Value::String(text);
        let table = Table::from_iter([("topic".to_owned(), text.clone())]);
        select(vec![
            text.clone(),
            Value::Array(vec![text]),
            Value::Table(table.clone()),
            Value::Array(vec![Value::Table(table)]),
        ])
    })
}

fn refused(found: Result<crate::config::Settings, String>) -> Result<String, TestCaseError> {
    let Err(message) = found else {
        return Err(TestCaseError::fail("taken"));
    };
    prop_assert!(message.starts_with("error: configuration: "), "{message}");
    prop_assert!(!message.contains(char::is_control), "{message:?}");
    prop_assert!(!message.contains(SECRET), "{message}");
    Ok(message)
}

proptest! {
    #[test]
    fn a_slip_in_any_key_is_refused_with_the_key_that_was_meant(wrong in misspelt()) {
        let Misspelt { path, at, meant } = wrong;
        prop_assert!(!meant.is_empty());
        let name = |full: &[String]| full.join(".").replace(char::is_control, " ");
        let hinted = |message: &str, full: &str| {
            message.contains(&format!("unknown key `{full}` ("))
                && meant.iter().any(|right| message.ends_with(&format!(") — did you mean `{right}`?")))
        };
        let leaf = leaf(&path, Value::from(SECRET));
        let message = refused(read(&file([&leaf]), vec![]))?;
        prop_assert!(hinted(&message, &name(&path[..=at])), "{message}");

        // Case has no meaning in a variable's name, and two underscores part its names.
        let lower: Vec<_> = path.iter().map(|name| name.to_ascii_lowercase()).collect();
        let parts = variable(&lower).to_ascii_lowercase();
        let parts: Vec<_> = parts["outbox__".len()..].split("__").collect();
        let is_wrong = !known(&parts[..at].iter().map(|part| if *part == "r" { ROUTE } else { part }).collect::<Vec<_>>()).contains(&*lower[at]);
        if parts == lower && is_wrong {
            let message = refused(read("", environment([&leaf])))?;
            let variable = variable(&lower).replace(char::is_control, " ");
            prop_assert!(hinted(&message, &name(&lower[..=at])) && message.contains(&variable), "{message}");
        }
    }

    /// Nor does one about a line that is no TOML, which a parser would show.
    #[test]
    fn creds_in_log_no_message_shows_a_line(key in select(KEYS), at: Index, added in option::of(select(&['"', '\'', '[', ']', '{', '}', '=', '#', '\n', '\\', ',', '.'][..]))) {
        let path: Vec<_> = key.0.split('.').map(|name| name.replace(ROUTE, "r")).collect();
        let mut text = file([&leaf(&path, Value::from(SECRET))]);
        let at = at.index(text.len());
        match added {
            Some(added) => text.insert(at, added),
            None => drop(text.remove(at)),
        }
        let found = read(&text, vec![]);
        if found.is_err() {
            refused(found)?;
        }
    }

    /// A value may be a secret in the wrong place.
    #[test]
    fn creds_in_log_no_message_shows_a_value(key in select(KEYS), value in secrets()) {
        let path: Vec<_> = key.0.split('.').map(|name| name.replace(ROUTE, "r")).collect();
        let leaf = leaf(&path, value);
        for read in [read(&file([&leaf]), vec![]), read("", environment([&leaf]))] {
            if read.is_err() {
                refused(read)?;
            }
        }
    }
}

/// What the properties are tried on is every key of the model, which tells its names itself.
#[test]
fn the_keys_are_all_there_are() {
    let sections: BTreeSet<Vec<&str>> = KEYS
        .iter()
        .flat_map(|(key, _)| {
            let path: Vec<_> = key.split('.').collect();
            (0..path.len()).map(move |len| path[..len].to_vec())
        })
        .filter(|section| section[..] != ["routes"])
        .collect();
    for section in sections {
        let mut path: Vec<_> = section
            .iter()
            .map(|name| name.replace(ROUTE, "r"))
            .collect();
        path.push("none_of_them_at_all".to_owned());
        let message = read(&file([&leaf(&path, Value::from(1))]), vec![]).unwrap_err();
        let (_, listed) = message.split_once("known here: ").unwrap();
        assert_eq!(listed.split(", ").collect::<BTreeSet<_>>(), known(&section));
    }
}
