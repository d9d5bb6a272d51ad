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

/// Names of more parts are no setting, and not read: tables in tables without end would end the
/// stack.
const PARTS_MAX: usize = 32;

/// Reads the file, if there is one, and lays the variables of the environment over it.
pub(crate) fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Settings, Failure> {
    let mut merged = match file {
        Some(path) => read_file(path)?,
        None => Table::new(),
    };
    let mut upper = Table::new();
    for layer in read_environment(environment)? {
        merge(&mut upper, layer);
    }
    give_way(&mut merged, &upper);
    merge(&mut merged, upper);
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
) -> Result<Vec<Table>, Failure> {
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
        if keys.len() > PARTS_MAX {
            let message = format!(
                "configuration: a variable {PREFIX}… has {} parts in its name — the longest setting has 4; correct its name",
                keys.len()
            );
            return Err(Failure::usage(message));
        }
        let layer = typed(&keys, text)
            .map_err(|wrong| wrong.at(&format_args!("environment variable {name}")))?;
        layers.push((name, layer));
    }
    layers.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(layers.into_iter().map(|(_, layer)| layer).collect())
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
        // What stands on further lines would be settings that no one reads.
        .filter(|t| t.len() == 1)
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

/// Takes out of `lower` what has no meaning below `upper`: the other form of a setting, where it
/// is a value here and a file there, and all of a table of another `kind`.
///
/// Only where they are settings: a route may be named as they are.
fn give_way(lower: &mut Table, upper: &Table) {
    if let (Some(Value::String(old)), Some(Value::String(new))) =
        (lower.get("kind"), upper.get("kind"))
        && old != new
    {
        lower.clear();
        return;
    }
    for (key, value) in upper {
        if let Value::Table(above) = value {
            if let Some(Value::Table(below)) = lower.get_mut(key) {
                give_way(below, above);
            }
            continue;
        }
        let other_form = match key.strip_suffix("_file") {
            Some(stem) => stem.to_owned(),
            None => format!("{key}_file"),
        };
        lower.remove(&other_form);
    }
}

/// Adds `upper` to `lower`, key by key; where both have a value, `upper` counts.
fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
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
            // The path may end in the name or before it; the name may hold dots itself.
            let full = match path.strip_suffix(name) {
                _ if path.is_empty() || path == "." => name.to_owned(),
                Some(before) if before.is_empty() || before.ends_with('.') => path.clone(),
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
mod tests;
