//! Reading the file and the environment, and laying one over the other.
//!
//! Each source is checked by itself before they are merged, so that a message can say where the
//! wrong key stands. Values are left out of messages: one may be a secret in the wrong place.

use std::{ffi::OsString, fmt, fs, path::Path};

use toml::{Table, Value};

use super::model::Settings;
use crate::exit::Failure;

/// Variables of this prefix are settings: `OUTBOX__STORE__URL` is `url` in `[store]`.
const PREFIX: &str = "OUTBOX__";

/// Reads the file, if there is one, and lays the variables of the environment over it.
pub(crate) fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Settings, Failure> {
    let mut merged = match file {
        Some(path) => read_file(path)?,
        None => Table::new(),
    };
    for (name, layer) in read_environment(environment)? {
        overlay(&mut merged, layer);
        // Each is valid alone; what can still fail is a variable on top of the file.
        check(Value::Table(merged.clone()))
            .map_err(|wrong| wrong.at(&format_args!("environment variable {name}")))?;
    }
    check(Value::Table(merged)).map_err(|wrong| wrong.at(&"the merged configuration"))
}

fn read_file(path: &Path) -> Result<Table, Failure> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "configuration: can't read {shown}: {error} — correct the path given by --config or \
             OUTBOX_CONFIG"
        ))
    })?;
    let place_of = |error: &toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        format!("{shown} line {line} column {column}")
    };
    // The parser's own `Display` would show the line, and with it perhaps a password.
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let place = place_of(&error);
        let reason = hide_quoted(error.message());
        Failure::usage(format!(
            "configuration: no valid TOML: {reason} ({place}) — correct that line"
        ))
    })?;
    let deserializer = toml::de::Deserializer::parse(&text);
    if let Ok(deserializer) = deserializer
        && let Err(error) = serde_path_to_error::deserialize::<_, Settings>(deserializer)
    {
        let place = place_of(error.inner());
        let wrong = Wrong {
            path: error.path().to_string(),
            message: error.inner().message().into(),
        };
        return Err(wrong.at(&place));
    }
    Ok(table)
}

/// The variables with our prefix, each as a table with one leaf, in the order of their names.
fn read_environment(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, Table)>, Failure> {
    let mut layers = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let Some(path) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let wrong = |path: &str, message: &str| {
            let wrong = Wrong {
                path: path.to_ascii_lowercase(),
                message: message.into(),
            };
            wrong.at(&format_args!("environment variable {name}"))
        };
        let text = value.to_str().ok_or_else(|| wrong(path, "no UTF-8 text"))?;
        let keys: Vec<String> = path.split("__").map(str::to_ascii_lowercase).collect();
        if keys.iter().any(String::is_empty) {
            return Err(wrong(
                path,
                "a part of the name is empty; write OUTBOX__STORE__URL",
            ));
        }
        let layer = typed(&keys, text)
            .map_err(|wrong| wrong.at(&format_args!("environment variable {name}")))?;
        layers.push((name, layer));
    }
    layers.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(layers)
}

/// The text as the type that its key has: a list or table where it is one and the key takes it,
/// as it stands where text is wanted, else as TOML.
fn typed(keys: &[String], text: &str) -> Result<Table, Wrong> {
    let checked = |value: Value| {
        let table = leaf(keys, value);
        check(Value::Table(table.clone())).map(|_| table)
    };
    let value = format!("value = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("value"));
    let as_text = || checked(Value::String(text.to_owned()));
    match value {
        // Before the text: `["orders"]` is no topic of that name.
        Some(value) if value.is_array() || value.is_table() => {
            // A list or table was meant, so what is wrong is in it.
            checked(value).or_else(|inside| as_text().map_err(|_| inside))
        }
        Some(value) => as_text().or_else(|wrong| checked(value).map_err(|_| wrong)),
        None => as_text(),
    }
}

fn leaf(keys: &[String], value: Value) -> Table {
    let (last, sections) = keys
        .split_last()
        .map_or(("", &[][..]), |(l, s)| (l.as_str(), s));
    let mut table = Table::from_iter([(last.to_owned(), value)]);
    for section in sections.iter().rev() {
        table = Table::from_iter([(section.clone(), Value::Table(table))]);
    }
    table
}

/// Lays `upper` over `lower`, key by key.
///
/// A value and its file form replace each other, and another `kind` replaces the whole table:
/// settings of the kind below would have no meaning for it.
fn overlay(lower: &mut Table, upper: Table) {
    if let (Some(old), Some(new)) = (lower.get("kind"), upper.get("kind"))
        && old != new
    {
        *lower = upper;
        return;
    }
    for (key, value) in upper {
        let other_form = match key.strip_suffix("_file") {
            Some(stem) => stem.to_owned(),
            None => format!("{key}_file"),
        };
        lower.remove(&other_form);
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

fn check(value: Value) -> Result<Settings, Wrong> {
    serde_path_to_error::deserialize(value).map_err(|error| Wrong {
        path: error.path().to_string(),
        message: error.inner().message().to_owned(),
    })
}

/// What is wrong with a setting.
struct Wrong {
    path: String,
    message: String,
}

impl Wrong {
    /// The message for people.
    fn at(&self, place: &dyn fmt::Display) -> Failure {
        let path = &self.path;
        let text = if let Some((name, known)) = self.unknown("unknown field `") {
            let full = match path.rsplit_once('.') {
                _ if path.is_empty() || path == "." => name.to_owned(),
                Some((_, last)) if last == name => path.clone(),
                None if path == name => path.clone(),
                _ => format!("{path}.{name}"),
            };
            format!(
                "unknown key `{full}` ({place}) — {}",
                nearest(name, &known).map_or_else(
                    || format!("known here: {}", known.join(", ")),
                    |meant| format!("did you mean `{meant}`?")
                )
            )
        } else if let Some((value, known)) = self.unknown("unknown variant `") {
            let meant = nearest(value, &known)
                .map_or_else(String::new, |meant| format!("did you mean `{meant}`? "));
            let known = known.join(", ");
            format!("wrong value of `{path}` ({place}) — {meant}write one of: {known}")
        } else {
            let reason = hide_quoted(&self.message);
            format!("wrong value of `{path}` ({place}): {reason} — correct the setting")
        };
        Failure::usage(format!("configuration: {text}"))
    }

    /// What is not known, and what is. The first may hold anything, even what looks like the rest.
    fn unknown(&self, opening: &str) -> Option<(&str, Vec<&str>)> {
        let rest = self.message.strip_prefix(opening)?;
        let (name, known) = rest.rsplit_once("`, expected ")?;
        Some((name, known.split('`').skip(1).step_by(2).collect()))
    }
}

/// The known name that is nearest to the unknown one, unless it is too far off to be meant.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), *candidate))
        .min();
    // One slip in three letters; more is no guess at what was meant.
    nearest
        .filter(|(slips, _)| slips * 3 <= name.len().max(3))
        .map(|(_, candidate)| candidate)
}

/// Takes the value out of serde's `invalid type: string "…", expected …`.
fn hide_quoted(message: &str) -> String {
    match (message.find('"'), message.rfind("\", expected")) {
        (Some(start), Some(end)) if start < end => {
            format!("{}{}", message[..start].trim_end(), &message[end + 1..])
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn with_file(text: &str, pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.toml");
        fs::write(&path, text).unwrap();
        load(Some(&path), env(pairs)).map_err(|failure| {
            failure
                .to_string()
                .replace(&format!("{}/", folder.path().display()), "")
        })
    }

    #[test]
    fn the_environment_beats_the_file() {
        let text =
            "[store]\nurl = \"postgres://file\"\nworkers = 2\n[routes.default]\ntopics = [\"a\"]\n";
        let settings = with_file(
            text,
            &[
                ("OUTBOX__STORE__WORKERS", "4"),
                ("OUTBOX__STORE__SCHEMA", "123"),
                ("OUTBOX__STORE__KEEP_DONE", "true"),
                ("OUTBOX__RELAY__POLL_MAX", "30s"),
                ("OUTBOX__ROUTES__DEFAULT__TOPICS", "x.*, y"),
                ("OUTBOX_CONFIG", "is no setting"),
                ("PATH", "neither"),
            ],
        )
        .unwrap();
        assert_eq!(settings.store.url.unwrap().expose(), "postgres://file");
        assert_eq!(settings.store.workers, Some(4));
        assert_eq!(settings.store.schema.as_deref(), Some("123"));
        assert_eq!(settings.store.keep_done, Some(true));
        assert_eq!(settings.relay.poll_max.unwrap().0.as_secs(), 30);
        assert_eq!(
            settings.routes["default"].topics.as_ref().unwrap().0.len(),
            2
        );
    }

    #[test]
    fn a_list_in_the_environment_is_no_topic_of_that_name() {
        let topics = [("OUTBOX__ROUTES__DEFAULT__TOPICS", "[\"a\", \"b\"]")];
        let settings = with_file("", &topics).unwrap();
        let read = settings.routes["default"].topics.as_ref().unwrap();
        let read: Vec<_> = read.0.iter().map(ToString::to_string).collect();
        assert_eq!(read, ["a", "b"]);
    }

    #[test]
    fn a_layer_above_replaces_the_other_form_and_another_kind() {
        let file = "[store]\nurl_file = \"f\"\n[routes.r.publisher]\nkind = \"redis\"\nurl = \"u\"";
        let pairs = [
            ("OUTBOX__STORE__URL", "postgres://env"),
            ("OUTBOX__ROUTES__R__PUBLISHER__KIND", "stdout"),
        ];
        let settings = with_file(file, &pairs).unwrap();
        assert_eq!(settings.store.url_file, None);
        assert_eq!(settings.store.url.unwrap().expose(), "postgres://env");
        assert!(settings.routes["r"].publisher.url.is_none());
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_nearest_name() {
        for (file, pairs, expected) in [
            (
                "[store]\n\nulr = \"postgres://u:p@h\"",
                &[][..],
                "error: configuration: unknown key `store.ulr` (outbox.toml line 3 column 1) — did you mean `url`?",
            ),
            (
                "[stroe]\n",
                &[],
                "error: configuration: unknown key `stroe` (outbox.toml line 1 column 2) — did you mean `store`?",
            ),
            (
                "[routes.default.publisher]\nkind=\"redis\"\nzzz=1",
                &[],
                "error: configuration: unknown key `routes.default.publisher.zzz` (outbox.toml line 3 column 1) — known here: ",
            ),
            (
                "",
                &[("OUTBOX__RELAY__POL_MIN", "1s")],
                "error: configuration: unknown key `relay.pol_min` (environment variable OUTBOX__RELAY__POL_MIN) — did you mean `poll_min`?",
            ),
            (
                "[log]\nformat = \"xml\"",
                &[],
                "error: configuration: wrong value of `log.format` (outbox.toml line 2 column 10) — write one of: text, json",
            ),
            (
                "[store]\nlease = 30",
                &[],
                "error: configuration: wrong value of `store.lease` (outbox.toml line 2 column 9): invalid type: integer `30`, expected a number with its unit as text, as in \"500ms\"",
            ),
            (
                "[store]\nlease = \"30\"",
                &[],
                "error: configuration: wrong value of `store.lease` (outbox.toml line 2 column 9): no duration; write",
            ),
        ] {
            let message = with_file(file, pairs).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    /// A misspelt key at every level, in the file and in the environment.
    #[test]
    fn each_level_names_place_wrong_key_and_nearest_key_and_no_value() {
        // Section, wrong key, its value, right key.
        for (section, wrong, value, right) in [
            ("", "sotre", "{ url = 's3cret' }", "store"),
            ("", "route", "{ s3cret = 1 }", "routes"),
            ("store", "shcema", "'s3cret'", "schema"),
            ("store", "urlfile", "'s3cret'", "url_file"),
            ("relay", "poll_mim", "'s3cret'", "poll_min"),
            ("http", "listne", "'s3cret'", "listen"),
            ("log", "fromat", "'s3cret'", "format"),
            ("routes.a", "topcis", "['s3cret']", "topics"),
            ("routes.a", "strict_oder", "true", "strict_order"),
            ("routes.a.publisher", "ulr", "'s3cret'", "url"),
            ("routes.a.publisher", "replica_min", "1", "replicas_min"),
            ("routes.a.retry", "attempt_max", "3", "attempts_max"),
            ("routes.a.breaker", "cpa", "'s3cret'", "cap"),
        ] {
            let full = match section {
                "" => wrong.to_owned(),
                _ => format!("{section}.{wrong}"),
            };
            let file = match section {
                "" => format!("\n\n{wrong} = {value}\n"),
                _ => format!("\n[{section}]\n{wrong} = {value}\n"),
            };
            let variable = format!("OUTBOX__{}", full.to_uppercase().replace('.', "__"));
            let sources = [
                (
                    with_file(&file, &[]),
                    "outbox.toml line 3 column 1".to_owned(),
                ),
                (
                    with_file("", &[(&variable, value)]),
                    format!("environment variable {variable}"),
                ),
            ];
            for (found, place) in sources {
                assert_eq!(
                    found.unwrap_err(),
                    format!(
                        "error: configuration: unknown key `{full}` ({place}) — did you mean `{right}`?"
                    )
                );
            }
        }
    }

    /// Words instead of keys: what stands there may be a secret.
    #[test]
    fn a_misspelt_word_is_told_with_the_known_ones_and_not_shown() {
        const STORES: &str = "write one of: postgres-queue, sqlite";
        for (section, key, value, known) in [
            (
                "store",
                "kind",
                "postgres-queu",
                "did you mean `postgres-queue`? write one of: postgres-queue, sqlite",
            ),
            ("store", "kind", "s3cret", STORES),
            (
                "log",
                "format",
                "jsno",
                "did you mean `json`? write one of: text, json",
            ),
            (
                "log",
                "format",
                "a`s3cret`b`, expected `c",
                "write one of: text, json",
            ),
            (
                "routes.a.publisher",
                "kind",
                "reddis",
                "did you mean `redis`? write one of: redis, stdout",
            ),
            (
                "routes.a.retry",
                "on_dead",
                "hold_key",
                "did you mean `hold-key`? write one of: hold-key, skip",
            ),
        ] {
            let file = format!("[{section}]\n{key} = \"{value}\"\n");
            let variable = format!("OUTBOX__{section}__{key}")
                .to_uppercase()
                .replace('.', "__");
            let column = key.len() + 4;
            for (found, place) in [
                (
                    with_file(&file, &[]),
                    format!("outbox.toml line 2 column {column}"),
                ),
                (
                    with_file("", &[(&variable, value)]),
                    format!("environment variable {variable}"),
                ),
            ] {
                assert_eq!(
                    found.unwrap_err(),
                    format!(
                        "error: configuration: wrong value of `{section}.{key}` ({place}) — {known}"
                    )
                );
            }
        }
    }

    /// A variable gives a list as TOML.
    #[test]
    fn a_misspelt_key_inside_a_list_is_named() {
        let list = "[{ topic = 's3cret', rety = {} }]";
        let expected = "unknown key `routes.a.retry_for[0].rety` (environment variable OUTBOX__ROUTES__A__RETRY_FOR) — did you mean `retry`?";
        let found = with_file("", &[("OUTBOX__ROUTES__A__RETRY_FOR", list)]).unwrap_err();
        assert_eq!(found, format!("error: configuration: {expected}"));
        let file = "[[routes.a.retry_for]]\ntopic = 's3cret'\nrety = {}";
        let found = with_file(file, &[]).unwrap_err();
        assert!(
            found.contains(
                "`routes.a.retry_for[0].rety` (outbox.toml line 3 column 1) — did you mean `retry`?"
            ),
            "{found}"
        );
    }

    #[test]
    fn creds_in_log_values_stay_out_of_messages() {
        for (file, pairs) in [
            ("store = \"postgres://u:s3cret@h\"", &[][..]),
            ("[store]\nurl = \"postgres://u:s3cret@h\nschema=\"x\"", &[]),
            ("[store]\nurl = postgres://u:s3cret@h", &[]),
            ("[store]\nurl = s3cret", &[]),
            ("[store]\nlease = \"postgres://u:s3cret@h\"", &[]),
            ("[store]\nworkers = \"s3cret\"", &[]),
            ("", &[("OUTBOX__STORE", "postgres://u:s3cret@h")]),
            ("", &[("OUTBOX__STORE__WORKERS", "s3cret")]),
            ("", &[("OUTBOX__LOG__FORMAT", "s3cret")]),
            ("", &[("OUTBOX__HTTP__LISTEN", "s3cret")]),
        ] {
            let message = with_file(file, pairs).unwrap_err();
            assert!(!message.contains("s3cret"), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
