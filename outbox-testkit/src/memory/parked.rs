//! Events off the hot path, with an index by key, so that a claim looks at the head of each key
//! only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use outbox_core::{DeadReason, FailureNote};

use super::row::Row;

/// Why an event is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParkedState {
    /// Waits for its next attempt; blocks its key.
    Retry { due: Duration },
    /// Waits behind an earlier event of its key.
    Held,
    /// Waits for a time that the producer or an operator set; blocks no key.
    Scheduled { due: Duration },
    /// Waits for an operator.
    Dead {
        reason: DeadReason,
        at: Duration,
        hold_key: bool,
    },
}

/// A parked event.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    pub(super) row: Arc<Row>,
    pub(super) state: ParkedState,
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    pub(super) first_failed: Option<Duration>,
    pub(super) last_failed: Option<Duration>,
    pub(super) note: FailureNote,
    pub(super) in_flight: bool,
}

impl Parked {
    pub(super) fn new(row: Arc<Row>, state: ParkedState) -> Self {
        Self {
            row,
            state,
            attempts: 0,
            crashes: 0,
            first_failed: None,
            last_failed: None,
            note: FailureNote::default(),
            in_flight: false,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, ParkedState::Dead { .. })
    }

    /// Whether later events of its key must wait for it.
    pub(super) fn blocks(&self) -> bool {
        match self.state {
            ParkedState::Retry { .. } | ParkedState::Held => true,
            ParkedState::Scheduled { .. } => false,
            ParkedState::Dead { hold_key, .. } => hold_key,
        }
    }
}

/// All parked events of a lane, by position.
#[derive(Debug, Default)]
pub(super) struct ParkedSet {
    rows: BTreeMap<i64, Parked>,
    /// Blocking rows of each key.
    keys: BTreeMap<String, BTreeSet<i64>>,
    /// Rows that wait for a time and block nothing: scheduled ones, and retries without a key.
    loose: BTreeSet<i64>,
}

impl ParkedSet {
    pub(super) fn get(&self, position: i64) -> Option<&Parked> {
        self.rows.get(&position)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Parked> {
        self.rows.values()
    }

    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &String> {
        self.keys.keys()
    }

    pub(super) fn blocks(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    pub(super) fn insert(&mut self, parked: Parked) {
        let position = parked.row.position;
        self.remove(position);
        match parked.row.key() {
            Some(key) if parked.blocks() => {
                self.keys
                    .entry(key.to_owned())
                    .or_default()
                    .insert(position);
            }
            _ if parked.is_dead() => {}
            _ => {
                self.loose.insert(position);
            }
        }
        self.rows.insert(position, parked);
    }

    pub(super) fn remove(&mut self, position: i64) -> Option<Parked> {
        let parked = self.rows.remove(&position)?;
        self.loose.remove(&position);
        if let Some(key) = parked.row.key()
            && let Some(of_key) = self.keys.get_mut(key)
        {
            of_key.remove(&position);
            if of_key.is_empty() {
                self.keys.remove(key);
            }
        }
        Some(parked)
    }

    /// Changes counters or state in place, keeping the index right.
    pub(super) fn update(&mut self, position: i64, change: impl FnOnce(&mut Parked)) {
        if let Some(mut parked) = self.remove(position) {
            change(&mut parked);
            self.insert(parked);
        }
    }

    /// What may be claimed now, by position. Of each key: the head when it is due, or, when the
    /// head is a held one, the run of held ones. Of a key in flight: nothing.
    /// One that was put off waits for earlier ones of its key, parked or in the stream before it.
    pub(super) fn ready(&mut self, now: Duration, settled: i64) -> Vec<i64> {
        let behind: Vec<i64> = self
            .loose_due(now, settled)
            .filter(|position| self.has_earlier(*position))
            .collect();
        for position in behind {
            self.update(position, |row| row.state = ParkedState::Held);
        }
        let mut ready: Vec<i64> = self.loose_due(now, settled).collect();
        for of_key in self.keys.values() {
            let mut rows = of_key.iter().filter_map(|position| self.rows.get(position));
            let Some(head) = rows.next() else { continue };
            match head.state {
                _ if head.in_flight => {}
                ParkedState::Retry { due } if due <= now => ready.push(head.row.position),
                ParkedState::Held => {
                    // Suspects of a crash are claimed apart: a run must not jump over one.
                    let suspect = head.crashes > 0;
                    let run = rows.take_while(|row| {
                        row.state == ParkedState::Held
                            && !row.in_flight
                            && (row.crashes > 0) == suspect
                    });
                    ready.push(head.row.position);
                    ready.extend(run.map(|row| row.row.position));
                }
                _ => {}
            }
        }
        ready.sort_unstable();
        ready
    }

    fn is_due(&self, position: i64, now: Duration) -> bool {
        self.rows.get(&position).is_some_and(|row| {
            !row.in_flight
                && match row.state {
                    ParkedState::Retry { due } | ParkedState::Scheduled { due } => due <= now,
                    ParkedState::Held => true,
                    ParkedState::Dead { .. } => false,
                }
        })
    }

    fn loose_due(&self, now: Duration, settled: i64) -> impl Iterator<Item = i64> {
        let waits = move |position: i64| {
            let row = self.rows.get(&position).map(|parked| &parked.row);
            position > settled && row.is_some_and(|row| row.key().is_some())
        };
        let loose = self.loose.iter().copied();
        loose.filter(move |position| self.is_due(*position, now) && !waits(*position))
    }

    fn has_earlier(&self, position: i64) -> bool {
        self.rows
            .get(&position)
            .and_then(|row| row.row.key())
            .and_then(|key| self.keys.get(key))
            .is_some_and(|of_key| of_key.range(..position).next().is_some())
    }
}
