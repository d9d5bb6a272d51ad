//! `outbox dead list | show`

use std::fmt::Write;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{DeadLetter, DeadLetters, DeadSummary, Page, Position, StoredEvent, remedy};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::{DeadListArgs, DeadShowArgs},
    config::StoreConfig,
    event_json::{EventJson, timestamp},
    exit::Failure,
    output::{plain, print, table},
    store,
};

/// Prints one page.
pub(crate) async fn list(args: &DeadListArgs, config: StoreConfig) -> Result<(), Failure> {
    let store = store::open_to_read(config).await?;
    let page = Page {
        after: args.after.map(Position),
        limit: args.limit,
    };
    let found = DeadLetters::list(&*store, &args.filter.filter(&[]), page).await?;
    if args.json {
        let lines = found.iter().map(|dead| format!("{}\n", summary_json(dead)));
        return print(&lines.collect::<String>());
    }
    print(&list_text(&found, args.limit))
}

/// The list for people.
pub(super) fn list_text(found: &[DeadSummary], limit: u32) -> String {
    if found.is_empty() {
        return "no dead letters\n".to_owned();
    }
    let rows: Vec<_> = found
        .iter()
        .map(|dead| {
            [
                dead.event_id.to_string(),
                plain(&dead.topic),
                plain(&dead.event_type),
                plain(dead.key.as_deref().unwrap_or("-")),
                dead.attempts.to_string(),
                timestamp(dead.dead_at),
                dead.reason.to_string(),
                plain(&dead.note.text),
            ]
        })
        .collect();
    let heading = [
        "id",
        "topic",
        "type",
        "key",
        "attempts",
        "dead since",
        "reason",
        "error",
    ];
    let mut text = table(heading, &rows);
    if let Some(last) = found.last()
        && found.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
    {
        let _ = writeln!(text, "there may be more: --after {}", last.position);
    }
    text
}

fn summary_json(dead: &DeadSummary) -> Value {
    json!({
        "position": dead.position.0,
        "id": dead.event_id,
        "topic": dead.topic,
        "key": dead.key,
        "type": dead.event_type,
        "attempts": dead.attempts,
        "reason": dead.reason.as_str(),
        "error_kind": dead.note.kind.map(outbox_core::ErrorKind::as_str),
        "error": dead.note.text,
        "remedy": dead.note.kind.map(remedy),
        "created_at": timestamp(dead.created_at),
        "dead_at": timestamp(dead.dead_at),
    })
}

/// Prints one dead letter.
pub(crate) async fn show(args: &DeadShowArgs, config: StoreConfig) -> Result<(), Failure> {
    let store = store::open_to_read(config).await?;
    let dead = store.get(args.id).await?.ok_or_else(|| {
        Failure::failed(format!(
            "show dead letter: none has the id {} — `outbox dead list` shows their ids",
            args.id
        ))
    })?;
    if args.json {
        return print(&show_json(&dead, args.payload)?);
    }
    print(&show_text(&dead, args.payload))
}

/// What `show --json` prints. The payload's JSON is copied as it stands, hence no `Value` of it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    summary: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<EventJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

fn show_json(dead: &DeadLetter, with_payload: bool) -> Result<String, Failure> {
    let event = dead.event.as_ref();
    let form = if with_payload {
        EventJson::whole
    } else {
        EventJson::without_payload
    };
    let shown = Shown {
        summary: summary_json(&dead.summary),
        event: event.ok().map(form),
        unreadable: event.err().map(ToString::to_string),
    };
    let json = serde_json::to_string(&shown);
    json.map(|json| json + "\n")
        .map_err(|error| Failure::failed(format!("show dead letter: {error}")))
}

fn show_text(dead: &DeadLetter, with_payload: bool) -> String {
    let summary = &dead.summary;
    let mut lines = vec![
        ("id", summary.event_id.to_string()),
        ("topic", summary.topic.clone()),
        ("type", summary.event_type.clone()),
        ("key", summary.key.clone().unwrap_or_else(|| "-".to_owned())),
        ("created", timestamp(summary.created_at)),
        ("dead since", timestamp(summary.dead_at)),
        ("attempts", summary.attempts.to_string()),
        ("reason", summary.reason.to_string()),
        ("error", summary.note.text.clone()),
    ];
    if let Some(kind) = summary.note.kind {
        lines.push(("error kind", kind.to_string()));
        lines.push(("what to do", remedy(kind).to_owned()));
    }
    match &dead.event {
        Ok(event) => event_lines(event, with_payload, &mut lines),
        Err(error) => lines.push(("unreadable", error.to_string())),
    }
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:14} {}", plain(value));
        text
    })
}

/// What the summary does not have.
fn event_lines(event: &StoredEvent, with_payload: bool, lines: &mut Vec<(&'static str, String)>) {
    lines.push(("version", event.event_version.to_string()));
    lines.push(("crashes", event.crashes.to_string()));
    let texts = [
        ("aggregate type", &event.aggregate_type),
        ("aggregate id", &event.aggregate_id),
        ("content type", &event.content_type),
    ];
    for (name, text) in texts {
        lines.extend(text.clone().map(|text| (name, text)));
    }
    for (name, value) in event.headers.iter() {
        lines.push((
            "header",
            format!("{name}={}", String::from_utf8_lossy(value)),
        ));
    }
    let payload = match &event.payload {
        None => "none: a tombstone".to_owned(),
        Some(bytes) if !with_payload => format!("{} bytes; shown by --payload", bytes.len()),
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("base64 {}", STANDARD.encode(bytes)),
        },
    };
    lines.push(("payload", payload));
}
