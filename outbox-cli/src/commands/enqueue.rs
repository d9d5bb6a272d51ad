//! `outbox enqueue`

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outbox_core::{Enqueued, Event, EventBuilder, Headers, InvalidEvent};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{
    args::EnqueueArgs,
    config::{StoreConfig, parse_duration},
    event_json::is_json,
    exit::Failure,
    output::print,
    store,
};

/// The longest line of standard input: an event of the largest size, written as base64 or with
/// escapes, has room in it.
const LINE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// All lines are one transaction and are in memory until it is written (I8).
const INPUT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Reads and checks what is to be written, before anything is connected to.
pub(crate) fn read(args: EnqueueArgs) -> Result<Vec<Event>, Failure> {
    if args.stdin {
        return lines(io::stdin().lock());
    }
    one(args).map(|event| vec![event])
}

/// Writes them in one transaction and prints the ids of those that were written.
pub(crate) async fn write(events: Vec<Event>, config: StoreConfig) -> Result<(), Failure> {
    let told = store::writer(config).await?.enqueue(&events).await?;
    let written: Vec<_> = events
        .iter()
        .zip(told)
        .filter(|(_, told)| *told == Enqueued::Written)
        .map(|(event, _)| format!("{}\n", event.id()))
        .collect();
    print(&written.concat()).map_err(|error| {
        let count = written.len();
        Failure::failed(format!(
            "enqueue: {count} events are written and only their ids could not be printed; do not \
             repeat it ({error})"
        ))
    })?;
    let known = events.len() - written.len();
    if known > 0 {
        tracing::warn!(known, "events were not written: their dedup keys are known");
    }
    Ok(())
}

/// The event that the flags describe.
fn one(args: EnqueueArgs) -> Result<Event, Failure> {
    let content_type = text("--content-type", args.content_type)?;
    let topic = text("--topic", args.topic.unwrap_or_default())?;
    let event_type = text("--type", args.event_type.unwrap_or_default())?;
    let mut event = Event::new(topic, event_type)
        .version(args.event_version)
        .content_type(content_type.as_str());
    if let Some(key) = args.key {
        event = event.key(text("--key", key)?);
    }
    if let Some(aggregate) = args.aggregate {
        let aggregate = text("--aggregate", aggregate)?;
        let (kind, id) = aggregate.split_once(':').ok_or_else(|| {
            wrong(
                "--aggregate",
                "it has no colon; write TYPE:ID, as in order:4711",
            )
        })?;
        event = event.aggregate(kind, id);
    }
    for header in args.headers {
        let header = text("--header", header)?;
        let (name, value) = header
            .split_once('=')
            .ok_or_else(|| wrong("--header", "it has no =; write NAME=VALUE"))?;
        event = event.header(name, value.to_owned());
    }
    if let Some(dedup_key) = args.dedup_key {
        event = event.dedup_key(text("--dedup-key", dedup_key)?);
    }
    if let Some(delay) = args.deliver_after {
        event = event.deliver_after(delay);
    }
    let payload = match (args.payload, args.payload_file) {
        (Some(payload), _) => text("--payload", payload)?.into_bytes(),
        (None, Some(file)) => fs::read(&file).map_err(|error| {
            Failure::input(format!(
                "enqueue: can't read --payload-file {}: {error} — correct the path",
                file.display()
            ))
        })?,
        (None, None) => return event.tombstone().map_err(|invalid| refused("", &invalid)),
    };
    if is_json(&content_type) && serde_json::from_slice::<&RawValue>(&payload).is_err() {
        return Err(Failure::input(
            "enqueue: the payload is no valid JSON — correct it, or say what it is by \
             --content-type, as in text/plain",
        ));
    }
    event
        .bytes(payload)
        .map_err(|invalid| refused("", &invalid))
}

/// A line of standard input. The names are those that the publisher `stdout` prints.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    topic: String,
    #[serde(rename = "type")]
    event_type: String,
    id: Option<Uuid>,
    version: Option<u32>,
    key: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    content_type: Option<String>,
    headers: Option<Box<RawValue>>,
    dedup_key: Option<String>,
    /// As `30s` or `10m`.
    deliver_after: Option<String>,
    #[serde(default, deserialize_with = "present")]
    payload: Option<Box<RawValue>>,
    payload_text: Option<String>,
    payload_base64: Option<String>,
    #[serde(default)]
    tombstone: bool,
    /// Printed by the publisher; the database sets its own.
    #[serde(rename = "created_at")]
    _created_at: Option<String>,
}

/// `null` is a payload, and not the absence of one.
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(d).map(Some)
}

/// Every line as an event, or the number of the first wrong one.
fn lines(mut input: impl BufRead) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    let mut total = 0;
    for number in 1_u64.. {
        let at = |why: &str| Failure::input(format!("enqueue: line {number}: {why}"));
        let mut bytes = Vec::new();
        let count = io::Read::take(&mut input, LINE_BYTES_MAX + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Failure::failed(format!("read standard input: {error}")))?;
        if count == 0 {
            break;
        }
        total += count;
        if bytes.len() as u64 > LINE_BYTES_MAX {
            return Err(at(
                "it is longer than 8 MiB — keep the payload elsewhere and send a \
                           reference",
            ));
        }
        if total > INPUT_BYTES_MAX {
            return Err(at(
                "the input is longer than 256 MiB — split it into several transactions",
            ));
        }
        let line = std::str::from_utf8(&bytes).map_err(|error| {
            at(&format!(
                "it is no UTF-8 text at byte {} — write bytes as payload_base64",
                error.valid_up_to()
            ))
        })?;
        if line.trim().is_empty() {
            continue;
        }
        events.push(event(line).map_err(|why| at(&why))?);
    }
    if events.is_empty() {
        return Err(Failure::input(
            "enqueue: standard input has no event — write one JSON object a line, as in \
             {\"topic\":\"orders\",\"type\":\"OrderPlaced\",\"payload\":{}}",
        ));
    }
    Ok(events)
}

fn event(line: &str) -> Result<Event, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| explain(&error))?;
    let mut event = Event::new(line.topic, line.event_type);
    if let Some(id) = line.id {
        event = event.id(id);
    }
    if let Some(version) = line.version {
        event = event.version(version);
    }
    match (line.aggregate_type, line.aggregate_id) {
        (Some(kind), Some(id)) => event = event.aggregate(kind, id),
        (None, None) => {}
        _ => return Err("aggregate_type and aggregate_id go together — give both".to_owned()),
    }
    if let Some(key) = line.key {
        event = event.key(key);
    }
    if let Some(dedup_key) = line.dedup_key {
        event = event.dedup_key(dedup_key);
    }
    if let Some(delay) = line.deliver_after {
        event = event.deliver_after(delay_of(&delay)?);
    }
    let headers = line.headers.as_deref().map(RawValue::get);
    let headers = headers.map(Headers::parse_json).transpose();
    let headers = headers.map_err(|error| error.to_string())?;
    for (name, value) in headers.iter().flat_map(Headers::iter) {
        event = event.header(name, value.clone());
    }
    if let Some(content_type) = line.content_type {
        event = event.content_type(content_type);
    }
    let payloads = [
        line.payload.is_some(),
        line.payload_text.is_some(),
        line.payload_base64.is_some(),
        line.tombstone,
    ];
    if payloads.iter().filter(|is_set| **is_set).count() != 1 {
        return Err(
            "it needs one of payload, payload_text, payload_base64 and tombstone:true".to_owned(),
        );
    }
    finish(event, line.payload, line.payload_text, line.payload_base64)
}

fn finish(
    event: EventBuilder,
    json: Option<Box<RawValue>>,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Event, String> {
    let event = match (json, text, base64) {
        (Some(json), _, _) => event.json(&json),
        (_, Some(text), _) => event.bytes(text),
        (_, _, Some(base64)) => {
            let bytes = STANDARD
                .decode(base64)
                .map_err(|_| "payload_base64 is no base64".to_owned())?;
            event.bytes(bytes)
        }
        (None, None, None) => event.tombstone(),
    };
    event.map_err(|invalid| invalid.to_string())
}

fn delay_of(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|why| format!("deliver_after: {why}"))
}

/// serde's reason without its own line number, which is always 1 here, and without quoted values:
/// they may be a part of the payload.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default();
    let reason = if error.is_data() && reason.starts_with("invalid type") {
        reason
            .rsplit_once(", expected")
            .map_or("a value has the wrong type".to_owned(), |(_, expected)| {
                format!("a value has the wrong type, expected{expected}")
            })
    } else {
        reason.to_owned()
    };
    format!(
        "{reason} (column {}) — write one JSON object a line",
        error.column()
    )
}

/// Text of the command line, which may hold any bytes.
fn text(flag: &str, value: OsString) -> Result<String, Failure> {
    value
        .into_string()
        .map_err(|_| wrong(flag, "it is no UTF-8 text; names and texts must be"))
}

fn wrong(flag: &str, why: &str) -> Failure {
    Failure::input(format!("enqueue: {flag}: {why}"))
}

fn refused(place: &str, invalid: &InvalidEvent) -> Failure {
    Failure::input(format!("enqueue: {place}{invalid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(input: &[u8]) -> String {
        lines(input).unwrap_err().to_string()
    }

    #[test]
    fn lines_become_events() {
        let input = br#"{"topic":"t","type":"T","payload":{"a":1.10},"headers":{"h":"v"},"aggregate_type":"order","aggregate_id":"1","version":2}

{"topic":"t","type":"T","payload":null,"id":"00000000-0000-0000-0000-000000000007"}
{"topic":"t","type":"T","payload_text":"hi","content_type":"text/plain","key":""}
{"topic":"t","type":"T","payload_base64":"/wA=","deliver_after":"10m","dedup_key":"d"}
{"topic":"t","type":"T","tombstone":true,"created_at":"1970-01-01T00:00:00Z"}"#;
        let events = lines(&input[..]).unwrap();
        let payloads: Vec<_> = events
            .iter()
            .map(|e| e.payload().map(|p| p.to_vec()))
            .collect();
        assert_eq!(
            payloads,
            [
                Some(br#"{"a":1.10}"#.to_vec()),
                Some(b"null".to_vec()),
                Some(b"hi".to_vec()),
                Some(vec![0xff, 0]),
                None
            ]
        );
        assert_eq!((events[0].key(), events[0].event_version()), (Some("1"), 2));
        assert_eq!(events[0].content_type(), Some("application/json"));
        assert_eq!(events[0].headers().len(), 1);
        assert_eq!(events[1].id(), Uuid::from_u128(7));
        assert_eq!(events[2].key(), Some(""));
        assert_eq!(events[3].deliver_after(), Some(Duration::from_secs(600)));
        assert_eq!(events[3].dedup_key(), Some("d"));
        assert_eq!(events[0].dedup_key(), None);
    }

    #[test]
    fn a_wrong_line_is_told_by_its_number() {
        let good = r#"{"topic":"t","type":"T","payload":1}"#;
        for (line, expected) in [
            ("{", "EOF while parsing"),
            ("[]", "write one JSON object a line"),
            (r#"{"type":"T","payload":1}"#, "missing field `topic`"),
            (
                r#"{"topic":"t","type":"T","payload":1,"tpoic":"x"}"#,
                "unknown field `tpoic`",
            ),
            (r#"{"topic":"t","type":"T"}"#, "needs one of payload"),
            (
                r#"{"topic":"t","type":"T","payload":1,"tombstone":true}"#,
                "needs one of payload",
            ),
            (r#"{"topic":"","type":"T","payload":1}"#, "topic is empty"),
            (r#"{"topic":"a\u0000b","type":"T","payload":1}"#, "topic"),
            (
                r#"{"topic":"t","type":"T","payload":1,"headers":3}"#,
                "headers are neither",
            ),
            (
                r#"{"topic":"t","type":"T","payload":1,"deliver_after":"soon"}"#,
                "deliver_after: no duration",
            ),
            (
                r#"{"topic":"t","type":"T","payload":1,"aggregate_id":"1"}"#,
                "go together",
            ),
            (
                r#"{"topic":"t","type":"T","payload_base64":"?"}"#,
                "no base64",
            ),
        ] {
            let message = failure(format!("{good}\n\n{line}\n").as_bytes());
            assert!(message.starts_with("error: enqueue: line 3: "), "{message}");
            assert!(message.contains(expected), "{message}");
        }
        let mut broken = format!("{good}\n").into_bytes();
        broken.extend(b"{\"topic\":\"\xff\"}\n");
        assert!(failure(&broken).contains("line 2: it is no UTF-8 text at byte 10"));
        assert!(failure(b"\n \n").contains("has no event"));
    }

    #[test]
    fn oversize_is_told_with_its_limit() {
        let line = format!(
            r#"{{"topic":"t","type":"T","payload_text":"{}"}}"#,
            "x".repeat(900_000)
        );
        assert!(failure(line.as_bytes()).contains("900000"));
        let long = "x".repeat(usize::try_from(LINE_BYTES_MAX).unwrap() + 1);
        assert!(failure(long.as_bytes()).contains("longer than 8 MiB"));
    }

    #[test]
    fn values_stay_out_of_messages() {
        let message = failure(br#"{"topic":"t","type":"T","version":"s3cret","payload":1}"#);
        assert!(
            message.contains("wrong type, expected u32") && !message.contains("s3cret"),
            "{message}"
        );
    }
}
