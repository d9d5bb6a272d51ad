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
    let line_of = |error: &toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        text.get(..start)
            .map_or(1, |before| before.matches('\n').count() + 1)
    };
    // The parser's own `Display` would show the line, and with it perhaps a password.
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = line_of(&error);
        let reason = hide_quoted(error.message());
        Failure::usage(format!(
            "configuration: no valid TOML: {reason} ({shown} line {line}) — correct that line"
        ))
    })?;
    let deserializer = toml::de::Deserializer::parse(&text);
    if let Ok(deserializer) = deserializer
        && let Err(error) = serde_path_to_error::deserialize::<_, Settings>(deserializer)
    {
        let line = line_of(error.inner());
        let wrong = Wrong {
            path: error.path().to_string(),
            message: error.inner().message().into(),
        };
        return Err(wrong.at(&format_args!("{shown} line {line}")));
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

/// The text as the type that its key has: as it stands where text is wanted, else as TOML.
fn typed(keys: &[String], text: &str) -> Result<Table, Wrong> {
    let as_text = leaf(keys, Value::String(text.to_owned()));
    let Err(wrong) = check(Value::Table(as_text.clone())) else {
        return Ok(as_text);
    };
    let value = format!("value = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("value"));
    if let Some(value) = value {
        let as_toml = leaf(keys, value);
        if check(Value::Table(as_toml.clone())).is_ok() {
            return Ok(as_toml);
        }
    }
    Err(wrong)
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
        let quoted: Vec<&str> = self.message.split('`').skip(1).step_by(2).collect();
        let text = if let Some(name) = self.unknown("unknown field `", &quoted) {
            let full = match path.rsplit_once('.') {
                _ if path.is_empty() || path == "." => name.to_owned(),
                Some((_, last)) if last == name => path.clone(),
                None if path == name => path.clone(),
                _ => format!("{path}.{name}"),
            };
            format!(
                "unknown key `{full}` ({place}) — {}",
                advice(name, &quoted[1..])
            )
        } else if self.unknown("unknown variant `", &quoted).is_some() {
            let known = quoted[1..].join(", ");
            format!("wrong value of `{path}` ({place}) — write one of: {known}")
        } else {
            let reason = hide_quoted(&self.message);
            format!("wrong value of `{path}` ({place}): {reason} — correct the setting")
        };
        Failure::usage(format!("configuration: {text}"))
    }

    fn unknown<'a>(&self, opening: &str, quoted: &[&'a str]) -> Option<&'a str> {
        self.message
            .starts_with(opening)
            .then(|| quoted.first().copied())?
    }
}

/// The known name that is nearest to the unknown one, or all of them.
fn advice(name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .min();
    match nearest {
        // One slip in three letters; more is no guess at what was meant.
        Some((slips, candidate)) if slips * 3 <= name.len().max(3) => {
            format!("did you mean `{candidate}`?")
        }
        _ => format!("known here: {}", known.join(", ")),
    }
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
                "error: configuration: unknown key `store.ulr` (outbox.toml line 3) — did you mean `url`?",
            ),
            (
                "[stroe]\n",
                &[],
                "error: configuration: unknown key `stroe` (outbox.toml line 1) — did you mean `store`?",
            ),
            (
                "[routes.default.publisher]\nkind=\"redis\"\nzzz=1",
                &[],
                "error: configuration: unknown key `routes.default.publisher.zzz` (outbox.toml line 3) — known here: ",
            ),
            (
                "",
                &[("OUTBOX__RELAY__POL_MIN", "1s")],
                "error: configuration: unknown key `relay.pol_min` (environment variable OUTBOX__RELAY__POL_MIN) — did you mean `poll_min`?",
            ),
            (
                "[log]\nformat = \"xml\"",
                &[],
                "error: configuration: wrong value of `log.format` (outbox.toml line 2) — write one of: text, json",
            ),
            (
                "[store]\nlease = 30",
                &[],
                "error: configuration: wrong value of `store.lease` (outbox.toml line 2): invalid type: integer `30`, expected a string",
            ),
            (
                "[store]\nlease = \"30\"",
                &[],
                "error: configuration: wrong value of `store.lease` (outbox.toml line 2): no duration; write",
            ),
        ] {
            let message = with_file(file, pairs).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
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
