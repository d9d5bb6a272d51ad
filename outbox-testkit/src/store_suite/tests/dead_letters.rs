//! I2: nothing fails silently; what operators see and do.

use std::{collections::BTreeMap, time::Duration};

use outbox_core::{
    DeadFilter, DeadGroup, DeadReason, DeadSummary, ErrorKind, Event, FailureNote, OutboxStore,
    Page, Verdict,
};
use uuid::Uuid;

use crate::store_suite::bench::{
    LONG, StoreBench, Worker, commit, dead, each, event, events, text, texts,
};

const ALL: Page = Page {
    after: None,
    limit: 1_000,
};

async fn list(store: &dyn OutboxStore, filter: &DeadFilter) -> Vec<DeadSummary> {
    store.list(filter, ALL).await.expect("list")
}

async fn count(store: &dyn OutboxStore, filter: &DeadFilter) -> u64 {
    store.count(filter).await.expect("count")
}

/// Every reason is kept with its note, and the event can be read as it was.
pub async fn i2_dead_letters_are_visible_with_their_reason(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let sent = events(DeadReason::ALL.len());
    commit(&*outbox, &sent).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(100).await;
    let odd = "it's \"odd\" \\ 50% {} größe ".repeat(100);
    let mut reasons = BTreeMap::new();
    let mut all = DeadReason::ALL.into_iter();
    let settlements = each(&batch, |event| {
        let reason = all.next().expect("as many reasons as events");
        reasons.insert(event.id, reason);
        Verdict::Dead {
            reason,
            note: FailureNote::new(Some(ErrorKind::TooLarge), &odd),
            hold_key: true,
        }
    });
    worker.settle(&batch, &settlements).await;
    worker.assert_drained().await;

    let letters = list(&*worker.store, &DeadFilter::default()).await;
    assert_eq!(letters.len(), sent.len());
    assert!(letters.is_sorted_by_key(|letter| letter.position));
    for (letter, sent) in letters.iter().zip(&sent) {
        let expected = FailureNote::new(Some(ErrorKind::TooLarge), &odd);
        assert_eq!(
            (letter.event_id, letter.topic.as_str()),
            (sent.id(), sent.topic())
        );
        assert_eq!(
            (letter.key.as_deref(), letter.event_type.as_str()),
            (sent.key(), sent.event_type())
        );
        assert_eq!(
            (letter.reason, &letter.note),
            (reasons[&letter.event_id], &expected)
        );
        assert_eq!(letter.attempts, 1);
        assert!(letter.dead_at >= letter.created_at);
        let whole = worker
            .store
            .get(sent.id())
            .await
            .expect("get")
            .expect("it is dead");
        assert_eq!(whole.summary, *letter);
        let event = whole.event.expect("it can be read");
        assert_eq!(
            (event.id, event.payload.as_ref()),
            (sent.id(), sent.payload())
        );
    }
    assert_eq!(
        worker.store.inspect(100).await.expect("inspect").dead.value,
        6
    );
    assert!(
        worker
            .store
            .get(Uuid::now_v7())
            .await
            .expect("get")
            .is_none()
    );
}

/// An outbox with dead letters of several topics, keys, types and kinds, and one that lives.
async fn various(outbox: &dyn crate::store_suite::Outbox, worker: &Worker) -> Vec<Event> {
    let make = |topic: &str, key: &str, event_type: &str| {
        let built = Event::new(topic, event_type)
            .key(key.to_owned())
            .bytes(key.to_owned());
        built.expect("valid")
    };
    let sent = vec![
        make("a", "k1", "X"),
        make("a", "k2", "Y"),
        make("b", "k3", "X"),
        make("b", "k4", "Y"),
        make("b", "alive", "X"),
    ];
    commit(outbox, &sent).await;
    let batch = worker.claim_some(100).await;
    let settlements = each(&batch, |event| match text(event).as_str() {
        "alive" => Verdict::Retry {
            after: Duration::from_secs(3_600),
            note: FailureNote::new(Some(ErrorKind::Refused), "again"),
        },
        "k1" => Verdict::Dead {
            reason: DeadReason::Rejected,
            note: FailureNote::new(Some(ErrorKind::TooLarge), "too large"),
            hold_key: true,
        },
        _ => dead(DeadReason::AttemptsExhausted, "refused", true),
    });
    worker.settle(&batch, &settlements).await;
    sent
}

/// Filters over what [`various`] makes, with the keys that fit.
fn filters(sent: &[Event]) -> Vec<(DeadFilter, &'static [&'static str])> {
    let any = DeadFilter::default;
    vec![
        (any(), &["k1", "k2", "k3", "k4"]),
        (
            DeadFilter {
                topic: Some("a".into()),
                ..any()
            },
            &["k1", "k2"],
        ),
        (
            DeadFilter {
                key: Some("k3".into()),
                ..any()
            },
            &["k3"],
        ),
        (
            DeadFilter {
                key: Some("alive".into()),
                ..any()
            },
            &[],
        ),
        (
            DeadFilter {
                event_type: Some("Y".into()),
                ..any()
            },
            &["k2", "k4"],
        ),
        (
            DeadFilter {
                error_kind: Some(ErrorKind::TooLarge),
                ..any()
            },
            &["k1"],
        ),
        (
            DeadFilter {
                ids: vec![sent[1].id(), sent[3].id(), sent[4].id()],
                ..any()
            },
            &["k2", "k4"],
        ),
        (
            DeadFilter {
                ids: vec![Uuid::now_v7()],
                ..any()
            },
            &[],
        ),
        (
            DeadFilter {
                dead_for: Some(Duration::ZERO),
                ..any()
            },
            &["k1", "k2", "k3", "k4"],
        ),
        (
            DeadFilter {
                dead_for: Some(Duration::from_secs(3_600)),
                ..any()
            },
            &[],
        ),
        (
            DeadFilter {
                topic: Some("b".into()),
                event_type: Some("X".into()),
                ..any()
            },
            &["k3"],
        ),
        (
            DeadFilter {
                topic: Some("a".into()),
                key: Some("k3".into()),
                ..any()
            },
            &[],
        ),
    ]
}

/// The groups that these letters make, the largest first.
fn alike(letters: &[DeadSummary]) -> Vec<DeadGroup> {
    let mut groups = Vec::<DeadGroup>::new();
    for letter in letters {
        let mut group = DeadGroup {
            topic: letter.topic.clone(),
            event_type: letter.event_type.clone(),
            error_kind: letter.note.kind,
            count: 0,
        };
        group.count = letters.iter().filter(|other| is_of(&group, other)).count() as u64;
        groups.push(group);
    }
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cmp(b)));
    groups.dedup();
    groups
}

fn is_of(group: &DeadGroup, letter: &DeadSummary) -> bool {
    (&letter.topic, &letter.event_type, letter.note.kind)
        == (&group.topic, &group.event_type, group.error_kind)
}

/// Each part of a filter narrows, alone and together; counting touches nothing.
pub async fn dead_letters_are_filtered(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let sent = various(&*outbox, &worker).await;
    for (filter, expected) in filters(&sent) {
        let letters = list(&*worker.store, &filter).await;
        let keys: Vec<_> = letters
            .iter()
            .filter_map(|letter| letter.key.as_deref())
            .collect();
        assert_eq!(keys, expected, "{filter:?}");
        let groups = worker.store.groups(&filter, 100).await.expect("groups");
        assert_eq!(groups, alike(&letters), "{filter:?}");
        let counted = count(&*worker.store, &filter).await;
        assert_eq!(
            counted,
            u64::try_from(expected.len()).expect("few"),
            "{filter:?}"
        );
    }
    assert_eq!(
        count(&*worker.store, &DeadFilter::default()).await,
        4,
        "counting changed something"
    );

    // None of them was like another so far; now there are three of the last group.
    let more = ["k5", "k6"].map(|key| Event::new("b", "Y").key(key).bytes(key).expect("valid"));
    commit(&*outbox, &more).await;
    let batch = worker.claim_some(100).await;
    let verdict = dead(DeadReason::AttemptsExhausted, "refused", true);
    worker.settle_all(&batch, &verdict).await;
    let all = DeadFilter::default();
    let expected = alike(&list(&*worker.store, &all).await);
    assert_eq!(expected[0].count, 3);
    for limit in [100, 2] {
        let groups = worker.store.groups(&all, limit).await.expect("groups");
        let listed = expected.len().min(limit as usize);
        assert_eq!(groups, expected[..listed]);
    }
}

/// Pages follow each other without gap or overlap.
pub async fn dead_letters_are_paged(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &events(7)).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let batch = worker.claim_some(100).await;
    worker
        .settle_all(&batch, &dead(DeadReason::Rejected, "no", true))
        .await;
    let whole = list(&*worker.store, &DeadFilter::default()).await;
    let mut paged = Vec::new();
    let mut page = Page {
        after: None,
        limit: 3,
    };
    loop {
        let part = worker
            .store
            .list(&DeadFilter::default(), page)
            .await
            .expect("list");
        let Some(last) = part.last() else { break };
        assert!(part.len() <= 3);
        page.after = Some(last.position);
        paged.extend(part);
    }
    assert_eq!((paged.len(), &paged), (7, &whole));
}

/// Requeue goes by the filter, oldest first, up to the limit, and starts the attempts anew.
pub async fn requeue_starts_anew(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    various(&*outbox, &worker).await;
    let all = DeadFilter::default();
    let only_b = DeadFilter {
        topic: Some("b".into()),
        ..DeadFilter::default()
    };
    assert_eq!(worker.store.requeue(&only_b, 1).await.expect("requeue"), 1);
    assert_eq!(count(&*worker.store, &all).await, 3);
    let batch = worker.claim_some(10).await;
    assert_eq!(texts(&batch.events), ["k3"], "the oldest of topic b");
    assert_eq!((batch.events[0].attempts, batch.events[0].crashes), (1, 0));
    worker.settle_all(&batch, &Verdict::Done).await;

    assert_eq!(worker.store.requeue(&all, 10).await.expect("requeue"), 3);
    assert_eq!(worker.store.requeue(&all, 10).await.expect("requeue"), 0);
    let mut seen = texts(&worker.drain_until(3).await);
    seen.sort();
    assert_eq!(seen, ["k1", "k2", "k4"]);
    assert_eq!(count(&*worker.store, &all).await, 0);
    worker.assert_drained().await;
}

/// A requeued event that fails again is a dead letter again.
pub async fn i2_a_requeued_event_may_die_again(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &[event("k", "event")]).await;
    let worker = Worker::start(&*outbox, "relay").await;
    for why in ["first", "second"] {
        let batch = worker.claim_some(10).await;
        worker
            .settle_all(&batch, &dead(DeadReason::Rejected, why, true))
            .await;
        let letters = list(&*worker.store, &DeadFilter::default()).await;
        assert_eq!((letters.len(), letters[0].note.text.as_str()), (1, why));
        assert_eq!(
            worker
                .store
                .requeue(&DeadFilter::default(), 10)
                .await
                .expect("requeue"),
            1
        );
    }
    assert_eq!(texts(&worker.drain_until(1).await), ["event"]);
}

/// Discard goes by the filter, oldest first, up to the limit, and is for ever.
pub async fn discard_is_for_ever(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let sent = various(&*outbox, &worker).await;
    let only_a = DeadFilter {
        topic: Some("a".into()),
        ..DeadFilter::default()
    };
    assert_eq!(worker.store.discard(&only_a, 1).await.expect("discard"), 1);
    assert!(worker.store.get(sent[0].id()).await.expect("get").is_none());
    assert!(worker.store.get(sent[1].id()).await.expect("get").is_some());
    assert_eq!(
        worker
            .store
            .discard(&DeadFilter::default(), 10)
            .await
            .expect("discard"),
        3
    );
    assert_eq!(
        worker
            .store
            .discard(&DeadFilter::default(), 10)
            .await
            .expect("discard"),
        0
    );
    assert_eq!(count(&*worker.store, &DeadFilter::default()).await, 0);
    assert_eq!(
        worker
            .store
            .requeue(&DeadFilter::default(), 10)
            .await
            .expect("requeue"),
        0
    );
    worker.assert_drained().await;
}

/// Operators can't touch what is not dead: pending, in flight or done.
pub async fn operators_touch_dead_letters_only(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let sent = events(3);
    commit(&*outbox, &sent).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let ids = DeadFilter {
        ids: sent.iter().map(Event::id).collect(),
        ..DeadFilter::default()
    };
    let done = worker.claim_some(1).await;
    worker.settle_all(&done, &Verdict::Done).await;
    let in_flight = worker.claim_some(1).await;
    assert_eq!(worker.store.discard(&ids, 10).await.expect("discard"), 0);
    assert_eq!(worker.store.requeue(&ids, 10).await.expect("requeue"), 0);
    assert!(
        worker
            .store
            .get(in_flight.events[0].id)
            .await
            .expect("get")
            .is_none()
    );
    assert_eq!(
        worker.settle_all(&in_flight, &Verdict::Done).await.applied,
        1
    );
    assert_eq!(worker.drain_until(1).await.len(), 1);
}

/// A row that is no event is handed out as such, can be dead-lettered, seen and discarded, and
/// stops nobody.
pub async fn i2_unreadable_rows_become_dead_letters(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    commit(&*outbox, &[event("a", "before")]).await;
    let made = outbox.insert_unreadable().await;
    assert_eq!(
        made,
        bench.gates().unreadable,
        "the gate and the harness differ"
    );
    commit(&*outbox, &[event("b", "behind")]).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let mut seen = Vec::new();
    let mut unreadable = 0;
    while seen.len() < 2 || unreadable < usize::from(made) {
        let batch = worker.claim_some(10).await;
        for row in &batch.unreadable {
            assert!(!row.error.to_string().is_empty());
        }
        unreadable += batch.unreadable.len();
        seen.extend(texts(&batch.events));
        let odd: Vec<_> = batch.unreadable.iter().map(|row| row.position).collect();
        let mut settlements = crate::store_suite::bench::all(&batch, &Verdict::Done);
        for settlement in settlements
            .iter_mut()
            .filter(|of| odd.contains(&of.position))
        {
            settlement.verdict = dead(DeadReason::Unreadable, "no event", false);
        }
        let settled = worker.settle(&batch, &settlements).await;
        assert_eq!(settled.lost, 0);
    }
    assert_eq!(seen, ["before", "behind"]);
    let letters = list(&*worker.store, &DeadFilter::default()).await;
    assert_eq!(letters.len(), usize::from(made));
    for letter in letters {
        assert_eq!(letter.reason, DeadReason::Unreadable);
        let whole = worker
            .store
            .get(letter.event_id)
            .await
            .expect("get")
            .expect("it is dead");
        assert!(whole.event.is_err(), "it can't be read");
    }
    let discarded = worker
        .store
        .discard(&DeadFilter::default(), 10)
        .await
        .expect("discard");
    assert_eq!(discarded, u64::from(made));
}
