//! Why events wait; I8.

use std::time::Duration;

use outbox_core::{Event, Failing, FailureNote, Verdict};

use crate::{
    store_suite::bench::{LONG, PATIENCE, StoreBench, Worker, commit, each, note, text},
    wait::eventually,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// An event of this topic with a key of its own, its name.
fn event(topic: &str, name: &str, deliver_after: Duration) -> Event {
    Event::new(topic, "Tested")
        .key(name)
        .deliver_after(deliver_after)
        .bytes(name.to_owned())
        .expect("a valid event")
}

fn retry(after: Duration, why: &str) -> Verdict {
    let note = note(why);
    Verdict::Retry { after, note }
}

fn defer(after: Duration, why: &str) -> Verdict {
    let note = note(why);
    Verdict::Defer { after, note }
}

/// Claims and settles until each event got all the verdicts that its name has, in their order.
async fn settle_in_turn(worker: &Worker, verdicts: &[(&str, &[Verdict])]) {
    let wanted: usize = verdicts.iter().map(|(_, of_event)| of_event.len()).sum();
    let mut given: Vec<String> = Vec::new();
    let all = eventually(PATIENCE, async || {
        let batch = worker.claim(100).await;
        let settlements = each(&batch, |event| {
            let name = text(event);
            let (_, of_event) = verdicts.iter().find(|(of, _)| *of == name).expect("known");
            let nth = given.iter().filter(|given| **given == name).count();
            given.push(name);
            of_event.get(nth).expect("claimed too often").clone()
        });
        if !settlements.is_empty() {
            worker.settle(&batch, &settlements).await;
        }
        (given.len() >= wanted).then_some(())
    });
    assert!(all.await.is_some(), "settled so far: {given:?}");
}

/// Topic, waiting events, and whether that is a bound.
fn counts(failing: &Failing) -> Vec<(&str, u64, bool)> {
    let topics = failing.topics.iter();
    topics
        .map(|of| (of.topic.as_str(), of.waiting.value, of.waiting.at_least))
        .collect()
}

/// Retried and deferred events are told by topic, with the first due time and the newest reason;
/// scheduled, delivered and dead ones are not.
pub async fn failing_topics_are_told_with_their_last_failure(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    let now = Duration::ZERO;
    let events = [
        event("a", "a-again", now),
        event("a", "a-once", now),
        event("b", "b", now),
        event("scheduled", "scheduled", HOUR),
        event("done", "done", now),
        event("dead", "dead", now),
    ];
    commit(&*outbox, &events).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let none = worker.store.failing(100, 10).await.expect("failing");
    assert_eq!(none, Failing::default(), "nothing has failed yet");

    let soon = Duration::from_millis(1);
    let dead = Verdict::Dead {
        reason: outbox_core::DeadReason::Rejected,
        note: note("dead"),
        hold_key: false,
    };
    let verdicts: &[(&str, &[Verdict])] = &[
        // The first of its topic by position, and the last that fails.
        ("a-again", &[retry(soon, "first"), defer(HOUR, "third")]),
        ("a-once", &[defer(2 * HOUR, "second")]),
        ("b", &[retry(2 * HOUR, "refused")]),
        ("done", &[retry(soon, "not yet"), Verdict::Done]),
        ("dead", &[retry(soon, "not yet"), dead]),
    ];
    settle_in_turn(&worker, verdicts).await;

    let failing = worker.store.failing(100, 10).await.expect("failing");
    assert_eq!(counts(&failing), [("a", 2, false), ("b", 1, false)]);
    assert!(!failing.more);
    let [a, b] = &failing.topics[..] else {
        panic!("{failing:?}")
    };
    for (topic, last_failure, hours) in [(a, "third", 1), (b, "refused", 2)] {
        assert_eq!(topic.last_failure, note(last_failure), "{failing:?}");
        let passed = (hours * HOUR).checked_sub(topic.retry_in);
        assert!(passed < Some(PATIENCE), "{failing:?}");
        assert!(passed.is_some(), "later than it was put off: {failing:?}");
    }
    let state = worker.store.inspect(100).await.expect("inspect");
    assert_eq!(state.scheduled.value, 4, "and one that the producer set");
}

/// Rows and topics are bounded, and it is said when a bound was reached (I8).
pub async fn i8_failing_topics_are_bounded(bench: &StoreBench) {
    let outbox = bench.fresh(LONG, 1).await;
    // As many as the number in the name; by name they would come in another order.
    let events = ["of-1", "of-3", "of-2", "of-3", "of-2", "of-3"];
    let events: Vec<Event> = (0..)
        .zip(events)
        .map(|(n, topic)| event(topic, &format!("{n}"), Duration::ZERO))
        .collect();
    commit(&*outbox, &events).await;
    let worker = Worker::start(&*outbox, "relay").await;
    let long = "x".repeat(2 * FailureNote::TEXT_BYTES_MAX);
    let verdict = [defer(HOUR, &long)];
    let names: Vec<String> = (0..events.len()).map(|n| n.to_string()).collect();
    let verdicts: Vec<(&str, &[Verdict])> = names
        .iter()
        .map(|name| (name.as_str(), &verdict[..]))
        .collect();
    settle_in_turn(&worker, &verdicts).await;

    let failing = async |rows_max, topics_max| {
        let failing = worker.store.failing(rows_max, topics_max).await;
        failing.expect("failing")
    };
    let all = failing(6, 3).await;
    let expected = [("of-3", 3, false), ("of-2", 2, false), ("of-1", 1, false)];
    assert_eq!(counts(&all), expected);
    assert!(!all.more, "exactly the bounds is not more");
    let longest = all.topics.iter().map(|of| of.last_failure.text.len()).max();
    assert_eq!(longest, Some(FailureNote::TEXT_BYTES_MAX));
    let most = failing(6, 2).await;
    assert_eq!(counts(&most), expected[..2]);
    assert!(most.more, "a topic is left out");
    let some = failing(5, 3).await;
    assert!(some.more, "a row is left out");
    assert!(!some.topics.is_empty());
    assert!(some.topics.iter().all(|of| of.waiting.at_least), "{some:?}");
}
