//! I4, I10: what went in comes out, each time.

use std::time::Duration;

use outbox_core::{Event, StoredEvent, Verdict};
use uuid::Uuid;

use crate::{
    documents,
    store_suite::bench::{LONG, SHORT, StoreBench, Worker, commit, retry},
};

/// Each event with its oddity; ids tell them apart.
fn oddities() -> Vec<Event> {
    let event = |key: &str| Event::new("t", "T").key(key.to_owned());
    let every_byte: Vec<u8> = (0..=255).collect();
    vec![
        event("tombstone").tombstone(),
        event("empty").bytes(""),
        event("null text").bytes("null"),
        event("every byte").bytes(every_byte.clone()),
        event("invalid utf-8").bytes(vec![0xff, 0xfe, 0x80]),
        event("nul").bytes("a\0b"),
        event("escapes").bytes(r#"{"a":"\u0000","b":"\\u0000"}"#),
        event("numbers").bytes(
            r#"{"a":12345678901234567890,"b":1.10,"c":-0.0,"d":1e400,"e":[1,2.5],"a":1, "f":0.1000000000000000055}"#,
        ),
        event("big").bytes(vec![7u8; 800_000]),
        event("\u{1f980} “quoted” \\ ' \"").bytes("x"),
        event("").bytes("empty key"),
        Event::new("t", "T").bytes("no key"),
        Event::new("t", "T").aggregate("order", "4711").bytes("aggregate"),
        Event::new("t", "T").aggregate("order", "4711").key("other").bytes("both"),
        event("meta").version(u32::from(u16::MAX)).content_type("application/cbor").bytes("x"),
        Event::new("topic with späces/and.dots", "Typ é").key("names").bytes("x"),
        event("headers")
            .header("twice", "1")
            .header("other", "x")
            .header("twice", "2")
            .header("empty", "")
            .header("binary", every_byte)
            .header("Ünïcode", "größe")
            .trace_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b"))
            .bytes("x"),
    ]
    .into_iter()
    .collect::<Result<_, _>>()
    .expect("valid events")
}

fn assert_same(sent: &Event, seen: &StoredEvent) {
    let expected = StoredEvent {
        attempts: seen.attempts,
        crashes: seen.crashes,
        failing_for: seen.failing_for,
        ..StoredEvent::from_event(sent, seen.position, seen.created_at)
    };
    assert_eq!(*seen, expected);
}

fn find(sent: &[Event], id: Uuid) -> &Event {
    sent.iter()
        .find(|event| event.id() == id)
        .expect("an id that was sent")
}

/// Case null-payload and its kind: every field comes out as it went in, null apart from empty.
pub async fn i10_every_field_comes_out_as_it_went_in(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let sent = oddities();
    commit(&*outbox, &sent).await;
    for one in oddities() {
        // A call with one event may take another way than one with many.
        commit(&*outbox, &[one]).await;
    }
    let worker = Worker::start(&*outbox, "relay").await;
    let seen = worker.drain_until(2 * sent.len()).await;
    assert_eq!(seen.len(), 2 * sent.len());
    for event in seen
        .iter()
        .filter(|event| sent.iter().any(|of| of.id() == event.id))
    {
        assert_same(find(&sent, event.id), event);
    }
    let by_key = |key: &str| {
        let of_key = seen
            .iter()
            .filter(move |event| event.key.as_deref() == Some(key));
        of_key
            .map(|event| event.payload.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(by_key("tombstone"), [None, None]);
    assert_eq!(by_key("empty"), [Some("".into()), Some("".into())]);
}

/// Case number-fidelity: JSON arrives as it was written, byte for byte.
pub async fn number_fidelity(bench: &StoreBench) {
    there_and_back(bench, &documents::NUMBERS).await;
}

/// Case nul-in-jsonb: NUL is a byte like any other, whether escaped or not; also in a header's value.
pub async fn nul_in_jsonb(bench: &StoreBench) {
    there_and_back(bench, &documents::NULS).await;
}

/// Each document as a payload of the type JSON and as a header's value.
async fn there_and_back(bench: &StoreBench, documents: &[&'static str]) {
    let outbox = bench.fresh(LONG, 1).await;
    let event = |document: &'static str| {
        let builder = Event::new("t", "T").content_type("application/json");
        builder.header("document", document).bytes(document)
    };
    let sent: Vec<_> = documents.iter().copied().map(event).collect();
    let sent: Vec<_> = sent.into_iter().collect::<Result<_, _>>().expect("valid");
    commit(&*outbox, &sent).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let seen = worker.drain_until(sent.len()).await;
    assert_eq!(seen.len(), sent.len());
    for event in &seen {
        assert_same(find(&sent, event.id), event);
    }
}

/// Every copy carries the same id, bytes, headers and time, through retries and lost leases.
pub async fn i4_same_id_and_bytes_on_redelivery(bench: &StoreBench) {
    let outbox = bench.fresh(SHORT, 1).await;
    let sent = oddities();
    commit(&*outbox, &sent).await;
    let dying = Worker::start(&*outbox, "dying").await;
    let first = dying.claim_some(100).await.events;
    assert_eq!(first.len(), sent.len());
    drop(dying);
    let worker = Worker::start(&*outbox, "relay").await;
    let mut copies = 0;
    while copies < sent.len() {
        let batch = worker.claim_some(100).await;
        for event in batch.events.iter().filter(|event| event.attempts == 2) {
            assert_same(find(&sent, event.id), event);
            let before = first
                .iter()
                .find(|of| of.id == event.id)
                .expect("seen before");
            assert_eq!(
                (event.created_at, event.position),
                (before.created_at, before.position)
            );
            copies += 1;
        }
        let settled = worker
            .settle_all(&batch, &retry(Duration::from_secs(3_600)))
            .await;
        assert_eq!(settled.lost, 0);
    }
    assert_eq!(copies, sent.len());
}

/// The creation time is the insert's, on the database's clock, and no claim changes it.
pub async fn i12_created_at_is_the_inserts(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let mut times = Vec::new();
    for n in 0..3 {
        commit(
            &*outbox,
            &[Event::new("t", "T").bytes(n.to_string()).expect("valid")],
        )
        .await;
        let batch = worker.claim_some(10).await;
        times.push((batch.events[0].created_at, batch.claimed_at));
        worker.settle_all(&batch, &Verdict::Done).await;
    }
    for (created, claimed) in &times {
        let age = *claimed - *created;
        assert!(
            !age.is_negative() && age < time::Duration::minutes(10),
            "{age}"
        );
    }
    assert!(times.is_sorted(), "{times:?}");
}
