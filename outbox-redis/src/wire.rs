//! An event as the arguments of XADD. docs.md has the table.

use outbox_core::{Binding, Encoding, Error, ErrorKind, Result, StoredEvent};
use redis::{Arg, Cmd, RedisWrite as _};
use time::UtcOffset;

use crate::error::PUBLISH;

/// The arguments beside the fields: command, stream, id, and `MAXLEN ~ n`.
const COMMAND_ARGUMENTS_MAX: usize = 6;
/// Fields and their values.
const FIELD_ARGUMENTS_MAX: usize = 2 * 14;
/// Names of the fields, ids and numbers together take less than this.
const FIXED_BYTES_MAX: usize = 320;

/// Whether the event can be written, without doing it where it plainly can.
///
/// # Errors
/// As [`encode`].
pub(crate) fn validate(
    event: &StoredEvent,
    encoding: &Encoding,
    field_bytes_max: usize,
) -> Result<()> {
    let source = match encoding {
        Encoding::CloudEvents { source } => source.len(),
        Encoding::Plain | Encoding::Debezium => 0,
    };
    // JSON writes a byte in up to 6, and an empty header in less than 16.
    let longest = 6 * (event.byte_len() + 16 * event.headers.len()) + FIXED_BYTES_MAX + source;
    let dated = (0..=9999).contains(&event.created_at.to_offset(UtcOffset::UTC).year());
    if !event.topic.is_empty() && dated && longest <= field_bytes_max {
        return Ok(());
    }
    encode(event, encoding, None, field_bytes_max).map(drop)
}

/// Writes the command that adds the event to its stream.
///
/// # Errors
/// Why this server can't take the event; message scope.
pub(crate) fn encode(
    event: &StoredEvent,
    encoding: &Encoding,
    stream_entries_max: Option<u64>,
    field_bytes_max: usize,
) -> Result<Cmd> {
    let payload = event.payload.as_deref().unwrap_or_default();
    if event.topic.is_empty() {
        return Err(rejected(ErrorKind::InvalidTopic, "the topic is empty"));
    }
    // Before its bytes are copied; the other fields are looked at when they are written.
    check_length(payload.len(), field_bytes_max)?;

    let bytes = event.byte_len() + FIXED_BYTES_MAX;
    let mut command = Cmd::with_capacity(COMMAND_ARGUMENTS_MAX + FIELD_ARGUMENTS_MAX, bytes);
    command.arg("XADD").arg(&event.topic);
    if let Some(entries) = stream_entries_max {
        command.arg("MAXLEN").arg("~").arg(entries);
    }
    command.arg("*");
    command.arg("payload").arg(payload);
    if event.payload.is_none() {
        command.arg("outbox-null").arg("1");
    }
    if let Some(key) = &event.key {
        command.arg("key").arg(key);
    }
    encoding.attributes(event, Binding::Kafka, |_, name, value| {
        command.arg(name).arg(value);
    })?;
    if !event.headers.is_empty() {
        command.arg("headers");
        serde_json::to_writer(command.writer_for_next_arg(), &event.headers.to_json())
            .map_err(|_| rejected(ErrorKind::InvalidEvent, "the headers can't be written"))?;
    }
    for argument in command.args_iter() {
        if let Arg::Simple(argument) = argument {
            check_length(argument.len(), field_bytes_max)?;
        }
    }
    Ok(command)
}

fn check_length(bytes: usize, bytes_max: usize) -> Result<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let error = Error::new(
        ErrorKind::TooLarge,
        PUBLISH,
        "a field is over the server's proto-max-bulk-len",
    );
    Err(error.context("bytes", bytes).context("limit", bytes_max))
}

fn rejected(kind: ErrorKind, what: &'static str) -> Error {
    Error::new(kind, PUBLISH, what)
}

/// About how many bytes the event takes on the wire.
pub(crate) fn bytes_estimate(event: &StoredEvent) -> usize {
    event.byte_len() + 2 * FIXED_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use outbox_core::{Event, Headers, Position};
    use time::macros::datetime;

    use super::*;

    fn stored(event: &Event) -> StoredEvent {
        StoredEvent::from_event(event, Position(1), datetime!(2026-02-03 04:05:06.7 +02:00))
    }

    fn arguments(command: &Cmd) -> Vec<&[u8]> {
        let plain = |argument| match argument {
            Arg::Simple(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        command.args_iter().map(plain).collect()
    }

    #[test]
    fn i10_every_field_is_written() {
        let event = Event::new("orders", "OrderPlaced")
            .aggregate("order", "4711")
            .key("")
            .version(3)
            .header("a", "x")
            .header("a", vec![0xff])
            .json(&1)
            .unwrap();
        let command = encode(&stored(&event), &Encoding::Plain, Some(9), usize::MAX).unwrap();
        let id = event.id().to_string();
        let expected: Vec<&[u8]> = vec![
            b"XADD",
            b"orders",
            b"MAXLEN",
            b"~",
            b"9",
            b"*",
            b"payload",
            b"1",
            b"key",
            b"",
            b"event-id",
            id.as_bytes(),
            b"event-type",
            b"OrderPlaced",
            b"event-version",
            b"3",
            b"aggregate-type",
            b"order",
            b"aggregate-id",
            b"4711",
            b"content-type",
            b"application/json",
            b"created-at",
            b"2026-02-03T02:05:06.7Z",
            b"headers",
            br#"[["a","x"],["a",{"b64":"/w=="}]]"#,
        ];
        assert_eq!(arguments(&command), expected);
        assert!(expected.len() <= COMMAND_ARGUMENTS_MAX + FIELD_ARGUMENTS_MAX);
    }

    #[test]
    fn what_is_absent_is_not_written() {
        let event = Event::new("t", "T").tombstone().unwrap();
        let command = encode(&stored(&event), &Encoding::Plain, None, usize::MAX).unwrap();
        let id = event.id().to_string();
        let expected: Vec<&[u8]> = vec![
            b"XADD",
            b"t",
            b"*",
            b"payload",
            b"",
            b"outbox-null",
            b"1",
            b"event-id",
            id.as_bytes(),
            b"event-type",
            b"T",
            b"event-version",
            b"1",
            b"created-at",
            b"2026-02-03T02:05:06.7Z",
        ];
        assert_eq!(arguments(&command), expected);
    }

    #[test]
    fn each_field_is_held_to_the_limit() {
        let payload = |bytes| stored(&Event::new("t", "T").bytes(vec![b'x'; bytes]).unwrap());
        assert!(encode(&payload(100), &Encoding::Plain, None, 100).is_ok());
        let headers = |bytes| {
            let mut event = payload(1);
            event.headers = [("h", vec![0xff; bytes])].into_iter().collect::<Headers>();
            event
        };
        // 60 bytes are 80 in base64, and 98 with what stands around them.
        assert!(encode(&headers(60), &Encoding::Plain, None, 98).is_ok());
        let mut topic = payload(1);
        topic.topic = "t".repeat(101);
        for (event, limit) in [(payload(101), 100), (headers(60), 97), (topic, 100)] {
            match encode(&event, &Encoding::Plain, None, limit) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::TooLarge),
                Ok(_) => panic!("{limit}"),
            }
        }
        let mut nameless = payload(1);
        nameless.topic.clear();
        let error = validate(&nameless, &Encoding::Plain, usize::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidTopic);
    }

    #[test]
    fn what_is_found_valid_can_be_written() {
        let event = |payload: usize, headers: &[(&str, Vec<u8>)]| {
            let mut event = stored(&Event::new("t", "T").bytes(vec![b'x'; payload]).unwrap());
            event.headers = headers.iter().cloned().collect::<Headers>();
            event
        };
        let empty = vec![("", vec![]); 30];
        let mut long_ago = event(1, &[]);
        long_ago.created_at = datetime!(-0001-01-01 00:00 UTC);
        let events = [
            event(0, &[]),
            event(300, &[]),
            // Each byte of the worst text becomes six.
            event(1, &[("\u{1}\u{1}\u{1}", vec![1; 99])]),
            event(1, &[("b", vec![0xff; 99])]),
            event(1, &empty),
            long_ago,
        ];
        for event in &events {
            for limit in (0..4000).chain([usize::MAX]) {
                let written = encode(event, &Encoding::Plain, None, limit)
                    .map(drop)
                    .map_err(|e| e.kind());
                let valid = validate(event, &Encoding::Plain, limit).map_err(|e| e.kind());
                assert_eq!(valid, written, "{limit}: {event:?}");
            }
        }
    }
}
