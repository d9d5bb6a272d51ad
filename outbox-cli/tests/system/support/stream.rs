//! A Redis stream as a consumer reads it.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use outbox_core::Headers;
use outbox_testkit::invariants::Sighting;
use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};
use uuid::Uuid;

/// Entries read by one call: no test's stream is longer than a few of these.
const ENTRIES_PER_CALL: usize = 10_000;

/// The fields of an entry as the server sends them.
type Fields = Vec<(String, Vec<u8>)>;

/// One entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) fields: BTreeMap<String, Vec<u8>>,
}

impl Entry {
    /// The event's id.
    pub(crate) fn id(&self) -> Uuid {
        self.text("event-id")
            .and_then(|id| id.parse().ok())
            .unwrap_or_else(|| panic!("no event id in {self:?}"))
    }

    /// What the checker compares with the event that was written.
    pub(crate) fn sighting(&self, topic: &str) -> Sighting {
        let headers = self
            .field("headers")
            .map(|json| Headers::from_json(&serde_json::from_slice(json).unwrap()).unwrap());
        let is_null = self.field("outbox-null").is_some();
        let payload = self.field("payload").filter(|_| !is_null);
        Sighting {
            id: self.id(),
            topic: topic.to_owned(),
            key: self.text("key").map(str::to_owned),
            event_type: self.text("event-type").unwrap().to_owned(),
            payload: payload.map(Bytes::copy_from_slice),
            headers: headers.unwrap_or_default(),
        }
    }

    /// A field's bytes; `None` when the entry has no such field.
    pub(crate) fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name).map(Vec::as_slice)
    }

    /// A field that must be text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.field(name)
            .map(|bytes| std::str::from_utf8(bytes).unwrap())
    }
}

/// A connection that waits for slow servers: tests slow them down.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// All entries, in the stream's order.
pub(crate) async fn read(url: &str, topic: &str) -> Vec<Entry> {
    let mut connection = connect(url).await.unwrap();
    let mut entries = Vec::new();
    let mut start = "-".to_owned();
    loop {
        let part: Vec<(String, Fields)> = redis::cmd("XRANGE")
            .arg(topic)
            .arg(&start)
            .arg("+")
            .arg("COUNT")
            .arg(ENTRIES_PER_CALL)
            .query_async(&mut connection)
            .await
            .unwrap();
        let Some((last, _)) = part.last() else {
            return entries;
        };
        start = format!("({last}");
        entries.extend(part.into_iter().map(|(_, fields)| {
            let count = fields.len();
            let fields: BTreeMap<_, _> = fields.into_iter().collect();
            assert_eq!(fields.len(), count, "no field twice");
            Entry { fields }
        }));
    }
}

/// How often each event is there. Copies must be equal in every field (I4).
pub(crate) fn copies(entries: &[Entry]) -> BTreeMap<Uuid, usize> {
    let mut first = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for entry in entries {
        let id = entry.id();
        assert_eq!(*first.entry(id).or_insert(entry), entry, "a copy differs");
        *counts.entry(id).or_default() += 1;
    }
    counts
}
