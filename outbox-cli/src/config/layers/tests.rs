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
fn another_kind_leaves_what_its_own_layer_says() {
    let file = "[store]\nkind = \"postgres-queue\"\nschema = \"s\"\n[routes.r.publisher]\nkind = \"stdout\"";
    let pairs = [
        ("OUTBOX__STORE__DEDUP_RETENTION", "7d"),
        ("OUTBOX__STORE__KIND", "sqlite"),
        ("OUTBOX__ROUTES__R__PUBLISHER__CA_FILE", "ca.pem"),
        ("OUTBOX__ROUTES__R__PUBLISHER__KIND", "redis"),
    ];
    let settings = with_file(file, &pairs).unwrap();
    assert_eq!(settings.store.schema, None);
    assert!(settings.store.dedup_retention.is_some());
    assert!(settings.routes["r"].publisher.ca_file.is_some());
}

#[test]
fn both_forms_in_one_layer_stay_to_be_refused() {
    let pairs = [
        ("OUTBOX__STORE__URL", "postgres://h/d"),
        ("OUTBOX__STORE__URL_FILE", "f"),
    ];
    let settings = with_file("", &pairs).unwrap();
    assert!(settings.store.url.is_some() && settings.store.url_file.is_some());
}

#[test]
fn routes_may_be_named_as_settings_are() {
    let file = "[routes.kind]\n[routes.x]\n[routes.x_file]\n";
    let pairs = [
        ("OUTBOX__ROUTES__KIND__STRICT_ORDER", "true"),
        ("OUTBOX__ROUTES__X__STRICT_ORDER", "true"),
    ];
    let settings = with_file(file, &pairs).unwrap();
    let names: Vec<_> = settings.routes.keys().collect();
    assert_eq!(names, ["kind", "x", "x_file"]);
}

#[test]
fn a_name_of_many_parts_is_refused_and_not_read() {
    let name = format!("OUTBOX{}", "__A".repeat(30_000));
    let message = with_file("", &[(&name, "1")]).unwrap_err();
    assert!(message.contains("has 30000 parts in its name"), "{message}");
    let message = with_file("", &[("OUTBOX__STORE__URL__A__A", "1")]).unwrap_err();
    assert!(message.contains("wrong value of `store.url`"), "{message}");
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
            "did you mean `redis`? write one of: amqp, http, kafka, nats, redis, stdout",
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
