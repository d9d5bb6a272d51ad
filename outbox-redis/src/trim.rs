//! Whether trimming took entries that a consumer group had not read.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outbox_core::StoredEvent;
use redis::{RedisResult, Value, aio::MultiplexedConnection, from_redis_value};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::connection::Connector;

const TRIMMED_UNREAD_ENTRIES: &str = "outbox_redis_trimmed_unread_entries";
/// Two small questions a stream each time: nothing that a server notices.
const INTERVAL: Duration = Duration::from_secs(5);
/// Streams that are watched at the most, the first ones written: each is a label of the metric.
const STREAMS_MAX: usize = 100;

/// Asks for the groups of the streams that a publisher trims, beside its work.
#[derive(Default)]
pub(crate) struct TrimWatch {
    streams: Arc<Mutex<BTreeSet<String>>>,
    is_started: AtomicBool,
}

impl TrimWatch {
    /// Takes note of the streams; with the first ones the watch begins, until `ended`.
    pub(crate) fn note(
        &self,
        events: &[StoredEvent],
        connector: &Arc<Connector>,
        ended: &CancellationToken,
    ) {
        let mut streams = lock(&self.streams);
        for event in events {
            if streams.len() < STREAMS_MAX && !streams.contains(&event.topic) {
                streams.insert(event.topic.clone());
            }
        }
        drop(streams);
        if !self.is_started.swap(true, Ordering::Relaxed) {
            metrics::describe_gauge!(
                TRIMMED_UNREAD_ENTRIES,
                "Entries that trimming took before the consumer group furthest behind had read them."
            );
            let watching = watch(Arc::clone(&self.streams), Arc::clone(connector));
            tokio::spawn(ended.clone().run_until_cancelled_owned(watching));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(streams: Arc<Mutex<BTreeSet<String>>>, connector: Arc<Connector>) {
    loop {
        sleep(INTERVAL).await;
        let names = lock(&streams).clone();
        // A server that is away is the publisher's matter; the next round tries again.
        let Ok(mut link) = connector.link().await else {
            continue;
        };
        for name in names {
            match timeout(INTERVAL, trimmed_unread(&mut link.connection, &name)).await {
                Ok(Ok(Some(entries))) => {
                    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
                    metrics::gauge!(TRIMMED_UNREAD_ENTRIES, "stream" => name)
                        .set(f64::from(entries));
                }
                Ok(Ok(None)) => {}
                // No such stream by now, or no permission to ask.
                Ok(Err(error)) if error.code().is_some() => {
                    debug!(stream = %name, code = error.code(), "the stream's groups are not told");
                }
                Ok(Err(_)) | Err(_) => break,
            }
        }
    }
}

/// The loss of the group that lost most; `None` where the server does not tell.
async fn trimmed_unread(
    connection: &mut MultiplexedConnection,
    name: &str,
) -> RedisResult<Option<u64>> {
    let mut questions = redis::pipe();
    questions.cmd("XINFO").arg("STREAM").arg(name);
    questions.cmd("XINFO").arg("GROUPS").arg(name);
    let (stream, groups): (HashMap<String, Value>, Vec<HashMap<String, Value>>) =
        questions.query_async(connection).await?;
    let stream = Stream::read(&stream);
    let losses = groups.iter().map(|group| stream.lost(&Group::read(group)));
    Ok(losses.flatten().max())
}

/// Milliseconds and sequence.
type EntryId = (u64, u64);

/// What the server tells of a stream.
#[derive(Debug, Clone, Copy)]
struct Stream {
    length: u64,
    /// `None` when it is empty.
    first: Option<EntryId>,
    /// Since its beginning; `None` before Redis 7.0.
    added: Option<u64>,
    /// The newest entry that was deleted by its id, which is not trimming.
    deleted: Option<EntryId>,
}

/// What the server tells of a consumer group.
#[derive(Debug, Clone, Copy)]
struct Group {
    delivered: Option<EntryId>,
    /// `None` when the server does not know, as of a group made with `$` that has not caught up yet.
    read: Option<u64>,
}

impl Stream {
    fn read(fields: &HashMap<String, Value>) -> Self {
        let first = match fields.get("first-entry") {
            Some(Value::Array(entry)) => entry.first().and_then(id),
            _ => None,
        };
        Self {
            length: number(fields, "length").unwrap_or(0),
            first,
            added: number(fields, "entries-added"),
            deleted: fields.get("max-deleted-entry-id").and_then(id),
        }
    }

    /// How many entries were trimmed before the group read them; `None` where that can't be told.
    fn lost(&self, group: &Group) -> Option<u64> {
        let delivered = group.delivered?;
        // It stands at an entry that is still there.
        if self.first.is_some_and(|first| delivered >= first) {
            return Some(0);
        }
        if self.deleted.is_some_and(|deleted| deleted > delivered) {
            return None;
        }
        let read = if delivered == (0, 0) { 0 } else { group.read? };
        Some(self.added?.saturating_sub(self.length).saturating_sub(read))
    }
}

impl Group {
    fn read(fields: &HashMap<String, Value>) -> Self {
        Self {
            delivered: fields.get("last-delivered-id").and_then(id),
            read: number(fields, "entries-read"),
        }
    }
}

fn number(fields: &HashMap<String, Value>, name: &str) -> Option<u64> {
    from_redis_value(fields.get(name)?.clone()).ok()
}

fn id(value: &Value) -> Option<EntryId> {
    let text: String = from_redis_value(value.clone()).ok()?;
    let (ms, sequence) = text.split_once('-')?;
    Some((ms.parse().ok()?, sequence.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream {
        length: 1_000,
        first: Some((4_001, 0)),
        added: Some(5_000),
        deleted: Some((0, 0)),
    };

    fn group(delivered: u64, read: Option<u64>) -> Group {
        let delivered = Some((delivered, 0));
        Group { delivered, read }
    }

    #[test]
    fn only_what_no_reading_can_bring_back_is_lost() {
        assert_eq!(STREAM.lost(&group(0, None)), Some(4_000), "never read");
        assert_eq!(STREAM.lost(&group(10, Some(10))), Some(3_990));
        assert_eq!(STREAM.lost(&group(4_000, Some(4_000))), Some(0), "just so");
        assert_eq!(STREAM.lost(&group(4_001, None)), Some(0), "still there");
        assert_eq!(STREAM.lost(&group(5_000, Some(1_000))), Some(0), "went on");
        let empty = Stream {
            length: 0,
            first: None,
            ..STREAM
        };
        assert_eq!(empty.lost(&group(10, Some(10))), Some(4_990));
        assert_eq!(empty.lost(&group(5_000, Some(5_000))), Some(0));
    }

    #[test]
    fn what_the_server_does_not_tell_is_no_alarm() {
        assert_eq!(STREAM.lost(&group(10, None)), None);
        let old = Stream {
            added: None,
            ..STREAM
        };
        assert_eq!(old.lost(&group(10, Some(10))), None);
        let deleted = Stream {
            deleted: Some((20, 0)),
            ..STREAM
        };
        assert_eq!(deleted.lost(&group(10, Some(10))), None, "by its id");
        assert_eq!(deleted.lost(&group(30, Some(30))), Some(3_970));
    }
}
