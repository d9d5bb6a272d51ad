//! `outbox status`

use outbox_core::{BoundedCount, ErrorKind, Failing, Inspection, OutboxStore, remedy};
use serde_json::{Value, json};

use super::watch;
use crate::{
    args::StatusArgs,
    config::StoreConfig,
    exit::Failure,
    output::{duration, plain, print, table},
    store,
};

/// Prints what is waiting, in flight and dead.
pub(crate) async fn run(args: &StatusArgs, config: StoreConfig) -> Result<(), Failure> {
    if let Some(interval) = args.watch {
        return watch::run(args, interval, config).await;
    }
    let store = store::open_to_read(config).await?;
    let look = look(&*store, args.count_max).await?;
    if args.json {
        return print(&format!("{}\n", look.to_json()));
    }
    print(&look.to_text())
}

/// Topics that are told of as failing.
const TOPICS_MAX: u32 = 20;

/// What is seen at one moment.
pub(super) struct Look {
    state: Inspection,
    failing: Failing,
}

/// Looks at the store.
pub(super) async fn look(store: &dyn OutboxStore, count_max: u32) -> outbox_core::Result<Look> {
    Ok(Look {
        state: store.inspect(count_max).await?,
        failing: store.failing(count_max, TOPICS_MAX).await?,
    })
}

impl Look {
    pub(super) fn to_text(&self) -> String {
        [counts, failing, lanes].map(|part| part(self)).concat()
    }

    pub(super) fn to_json(&self) -> Value {
        let state = &self.state;
        let lanes: Vec<_> = state
            .lanes
            .iter()
            .map(|lane| {
                json!({
                    "lane": lane.lane.0,
                    "owner": lane.owner,
                    "in_flight": count(lane.in_flight),
                    "lease_left_seconds": lane.lease_left.as_secs_f64(),
                })
            })
            .collect();
        let failing: Vec<_> = self
            .failing
            .topics
            .iter()
            .map(|failing| {
                let note = &failing.last_failure;
                json!({
                    "topic": failing.topic,
                    "waiting": count(failing.waiting),
                    "retry_in_seconds": failing.retry_in.as_secs_f64(),
                    "error_kind": note.kind.map(ErrorKind::as_str),
                    "error": note.text,
                    "remedy": note.kind.map(remedy),
                })
            })
            .collect();
        json!({
            "pending": count(state.pending),
            "scheduled": count(state.scheduled),
            "in_flight": count(state.in_flight),
            "held": count(state.held),
            "blocked_keys": count(state.blocked_keys),
            "dead": count(state.dead),
            "oldest_pending_seconds": state.oldest_pending.as_secs_f64(),
            "failing": failing,
            "failing_more": self.failing.more,
            "lanes": lanes,
        })
    }
}

fn count(count: BoundedCount) -> Value {
    json!({ "value": count.value, "at_least": count.at_least })
}

fn counts(Look { state, .. }: &Look) -> String {
    let oldest = if state.pending.value == 0 {
        String::new()
    } else {
        format!(
            "the oldest has been due for {}",
            duration(state.oldest_pending)
        )
    };
    let dead = if state.dead.value == 0 {
        ""
    } else {
        "see `outbox dead list`"
    };
    let row = |name: &str, count: BoundedCount, note: &str| {
        [name.to_owned(), count.to_string(), note.to_owned()]
    };
    let mut rows = vec![
        row("pending", state.pending, &oldest),
        row(
            "scheduled",
            state.scheduled,
            "due later, or waiting for a retry",
        ),
        row("in flight", state.in_flight, "claimed by a relay"),
    ];
    if state.held.value > 0 || state.blocked_keys.value > 0 {
        let note = format!(
            "behind an earlier event of their key; {} keys",
            state.blocked_keys
        );
        rows.push(row("held", state.held, &note));
    }
    rows.push(row("dead", state.dead, dead));
    table(["events", "count", ""], &rows)
}

/// Why events wait, by topic: a part of those that are scheduled.
fn failing(Look { failing, .. }: &Look) -> String {
    let rows: Vec<_> = failing
        .topics
        .iter()
        .map(|failing| {
            [
                plain(&failing.topic),
                failing.waiting.to_string(),
                duration(failing.retry_in),
                plain(&failing.last_failure.text),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let more = if failing.more {
        "there may be more of them\n"
    } else {
        ""
    };
    let heading = ["failing topic", "waiting", "retry in", "last failure"];
    format!("\n{}{more}", table(heading, &rows))
}

fn lanes(Look { state, .. }: &Look) -> String {
    if state.lanes.is_empty() {
        return String::new();
    }
    let lanes: Vec<_> = state
        .lanes
        .iter()
        .map(|lane| {
            [
                plain(&lane.lane.0),
                plain(lane.owner.as_deref().unwrap_or("-")),
                lane.in_flight.to_string(),
                duration(lane.lease_left),
            ]
        })
        .collect();
    let heading = ["lane", "owner", "in flight", "lease left"];
    format!("\n{}", table(heading, &lanes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_core::{FailingTopic, FailureNote, LaneId, LaneInfo};

    use super::*;

    #[test]
    fn both_forms_tell_the_counts_and_their_bound() {
        let state = Inspection {
            pending: BoundedCount {
                value: 100_000,
                at_least: true,
            },
            oldest_pending: Duration::from_secs(90),
            dead: BoundedCount {
                value: 2,
                at_least: false,
            },
            lanes: vec![LaneInfo {
                lane: LaneId("w/1".into()),
                owner: Some("w".into()),
                in_flight: BoundedCount {
                    value: 7,
                    at_least: false,
                },
                lease_left: Duration::from_secs(3),
            }],
            ..Inspection::default()
        };
        let failing = Failing {
            topics: vec![FailingTopic {
                topic: "orders\u{7}".into(),
                waiting: BoundedCount {
                    value: 12,
                    at_least: false,
                },
                retry_in: Duration::from_secs(8),
                last_failure: FailureNote::new(
                    Some(ErrorKind::ReadOnly),
                    "publish: read_only: READONLY",
                ),
            }],
            more: true,
        };
        let mut look = Look { state, failing };
        let text = look.to_text();
        assert!(
            text.contains("pending    100000+  the oldest has been due for 1m 30s"),
            "{text}"
        );
        assert!(text.contains("w/1   w      7          3s"), "{text}");
        let fails =
            "orders\\u{7}    12       8s        publish: read_only: READONLY\nthere may be more";
        assert!(text.contains(fails), "{text}");
        assert!(!text.contains("held"), "{text}");
        let json = look.to_json();
        assert_eq!(json["pending"]["at_least"], true);
        assert_eq!(json["dead"]["value"], 2);
        assert_eq!(json["lanes"][0]["in_flight"]["value"], 7);
        let failing = &json["failing"][0];
        assert_eq!(failing["topic"], "orders\u{7}");
        assert_eq!(failing["waiting"]["value"], 12);
        assert_eq!(failing["retry_in_seconds"], 8.0);
        assert_eq!(failing["error_kind"], "read_only");
        assert_eq!(json["failing_more"], true);

        look.failing = Failing::default();
        let text = look.to_text();
        assert!(!text.contains("failing"), "{text}");
        assert_eq!(look.to_json()["failing"], json!([]));
    }
}
