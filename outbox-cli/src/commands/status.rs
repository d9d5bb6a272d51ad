//! `outbox status`

use std::fmt::Write;

use outbox_core::{BoundedCount, Inspection};
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
    let inspection = store.inspect(args.count_max).await?;
    if args.json {
        return print(&format!("{}\n", to_json(&inspection)));
    }
    print(&to_text(&inspection))
}

pub(super) fn to_text(state: &Inspection) -> String {
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
    let mut text = table(["events", "count", ""], &rows);
    if !state.lanes.is_empty() {
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
        let _ = write!(
            text,
            "\n{}",
            table(["lane", "owner", "in flight", "lease left"], &lanes)
        );
    }
    text
}

pub(super) fn to_json(state: &Inspection) -> Value {
    let count = |count: BoundedCount| json!({ "value": count.value, "at_least": count.at_least });
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
    json!({
        "pending": count(state.pending),
        "scheduled": count(state.scheduled),
        "in_flight": count(state.in_flight),
        "held": count(state.held),
        "blocked_keys": count(state.blocked_keys),
        "dead": count(state.dead),
        "oldest_pending_seconds": state.oldest_pending.as_secs_f64(),
        "lanes": lanes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_core::{LaneId, LaneInfo};

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
        let text = to_text(&state);
        assert!(
            text.contains("pending    100000+  the oldest has been due for 1m 30s"),
            "{text}"
        );
        assert!(text.contains("w/1   w      7          3s"), "{text}");
        assert!(!text.contains("held"), "{text}");
        let json = to_json(&state);
        assert_eq!(json["pending"]["at_least"], true);
        assert_eq!(json["dead"]["value"], 2);
        assert_eq!(json["lanes"][0]["in_flight"]["value"], 7);
    }
}
