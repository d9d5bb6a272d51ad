//! The store's own account of itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{BoundedCount, Failing, FailingTopic, Inspect, Inspection, LaneInfo, Result};

use super::{
    lane::MemoryLane,
    lane_state::LaneState,
    parked::{Parked, ParkedState},
    row::Row,
    state::{Route, State},
    store::MemoryStore,
};

/// A count that stops at the bound.
struct Counter {
    max: u64,
    count: BoundedCount,
}

impl Counter {
    fn new(max: u32) -> Self {
        Self {
            max: u64::from(max),
            count: BoundedCount::default(),
        }
    }

    fn add(&mut self, by: usize) {
        let sum = self
            .count
            .value
            .saturating_add(u64::try_from(by).unwrap_or(u64::MAX));
        self.count.at_least |= sum > self.max;
        self.count.value = sum.min(self.max);
    }
}

struct Counters {
    pending: Counter,
    scheduled: Counter,
    in_flight: Counter,
    held: Counter,
    dead: Counter,
    blocked: Counter,
    oldest: Option<Duration>,
}

#[async_trait]
impl Inspect for MemoryStore {
    async fn inspect(&self, count_max: u32) -> Result<Inspection> {
        let now = self.now();
        let state = self.lock();
        let counter = || Counter::new(count_max);
        let mut counters = Counters {
            pending: counter(),
            scheduled: counter(),
            in_flight: counter(),
            held: counter(),
            dead: counter(),
            blocked: counter(),
            oldest: None,
        };
        let mut lanes = Vec::new();
        for route in state.routes.values() {
            for (index, lane) in route.lanes.iter().enumerate() {
                counters.lane(lane, route, &state.log[index], now);
                lanes.push(info(lane, index, now, count_max));
            }
        }
        if state.routes.is_empty() {
            counters.unread(&state, now);
        }
        Ok(Inspection {
            pending: counters.pending.count,
            scheduled: counters.scheduled.count,
            in_flight: counters.in_flight.count,
            held: counters.held.count,
            dead: counters.dead.count,
            oldest_pending: counters
                .oldest
                .map_or(Duration::ZERO, |due| now.saturating_sub(due)),
            blocked_keys: counters.blocked.count,
            lanes,
        })
    }

    async fn failing(&self, rows_max: u32, topics_max: u32) -> Result<Failing> {
        let now = self.now();
        let state = self.lock();
        let mut rows: Vec<(Duration, &Parked)> = state
            .lanes()
            .flat_map(|lane| lane.parked.iter())
            .filter(|parked| !parked.in_flight && parked.last_failed.is_some())
            .filter_map(|parked| match parked.state {
                ParkedState::Retry { due } if due > now => Some((due, parked)),
                _ => None,
            })
            .collect();
        rows.sort_by_key(|(due, parked)| (*due, parked.row.position));
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        let cut = rows.len() > rows_max;
        rows.truncate(rows_max);
        let mut by_topic = BTreeMap::<&str, Vec<(Duration, &Parked)>>::new();
        for (due, parked) in rows {
            let of_topic = by_topic.entry(parked.row.topic()).or_default();
            of_topic.push((due, parked));
        }
        let mut topics: Vec<FailingTopic> = by_topic
            .into_iter()
            .filter_map(|(topic, rows)| failing_topic(topic, &rows, now, cut))
            .collect();
        topics.sort_by_key(|topic| std::cmp::Reverse(topic.waiting.value));
        let topics_max = usize::try_from(topics_max).unwrap_or(usize::MAX);
        let more = cut || topics.len() > topics_max;
        topics.truncate(topics_max);
        Ok(Failing { topics, more })
    }
}

/// What is told of a topic; its rows are sorted by their due times.
fn failing_topic(
    topic: &str,
    rows: &[(Duration, &Parked)],
    now: Duration,
    at_least: bool,
) -> Option<FailingTopic> {
    let (due, _) = rows.first()?;
    let newest = |(_, parked): &&(Duration, &Parked)| (parked.last_failed, parked.row.position);
    let (_, last) = rows.iter().max_by_key(newest)?;
    Some(FailingTopic {
        topic: topic.to_owned(),
        waiting: BoundedCount {
            value: u64::try_from(rows.len()).unwrap_or(u64::MAX),
            at_least,
        },
        retry_in: due.saturating_sub(now),
        last_failure: last.note.clone(),
    })
}

impl Counters {
    fn lane(
        &mut self,
        lane: &LaneState,
        route: &Route,
        log: &BTreeMap<i64, Arc<Row>>,
        now: Duration,
    ) {
        let in_flight: usize = lane.flights.iter().map(|flight| flight.rows.len()).sum();
        self.in_flight.add(in_flight);
        self.blocked.add(lane.parked.keys().len());
        // Keys of which something stands before the row: in flight, waiting for its retry, or dead.
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for parked in lane.parked.iter() {
            let key = parked.row.key().unwrap_or_default();
            let held = parked.state == ParkedState::Held;
            let behind = parked.row.key().is_some() && waiting.contains(key);
            if parked.blocks() && (parked.in_flight || !held) {
                waiting.insert(key);
            }
            if parked.in_flight {
                continue;
            }
            match parked.state {
                // Nothing before it is left: it can go.
                ParkedState::Dead { .. } => self.dead.add(1),
                // Also a requeued one: an earlier one of its key is dead still.
                ParkedState::Held | ParkedState::Retry { .. } if behind => self.held.add(1),
                ParkedState::Held => self.row(&parked.row, now),
                ParkedState::Retry { due } | ParkedState::Scheduled { due } => {
                    self.timed(due, now);
                }
            }
        }
        for (position, row) in log.range(lane.read + 1..) {
            if route.topics.matches(row.topic()) && lane.parked.get(*position).is_none() {
                self.row(row, now);
            }
        }
    }

    /// Rows of a store that no relay has visited yet.
    fn unread(&mut self, state: &State, now: Duration) {
        for row in state.log.iter().flat_map(BTreeMap::values) {
            self.row(row, now);
        }
    }

    fn row(&mut self, row: &Row, now: Duration) {
        if row.due() > now {
            self.scheduled.add(1);
        } else {
            // It waits since then, and not since the beginning of time.
            self.timed(row.due().max(row.created).min(now), now);
        }
    }

    fn timed(&mut self, due: Duration, now: Duration) {
        if due > now {
            self.scheduled.add(1);
        } else {
            self.pending.add(1);
            self.oldest = Some(self.oldest.map_or(due, |oldest| oldest.min(due)));
        }
    }
}

fn info(lane: &LaneState, index: usize, now: Duration, count_max: u32) -> LaneInfo {
    let mut in_flight = Counter::new(count_max);
    for flight in &lane.flights {
        in_flight.add(flight.rows.len());
    }
    LaneInfo {
        lane: MemoryLane::id_of(index),
        owner: lane.owner.as_ref().map(ToString::to_string),
        in_flight: in_flight.count,
        lease_left: lane.lease_end.saturating_sub(now),
    }
}
