//! Dead letters: what an operator asks is carried out at once, under the store's lock.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use outbox_core::{
    DeadFilter, DeadGroup, DeadLetter, DeadLetters, DeadReason, DeadSummary, FailureNote, Page,
    Position, Result,
};
use uuid::Uuid;

use super::{
    clock::wall,
    lane_state::LaneState,
    mutation::Mutation,
    parked::{Parked, ParkedState},
    row::Counters,
    state::State,
    store::MemoryStore,
};

#[async_trait]
impl DeadLetters for MemoryStore {
    async fn list(&self, filter: &DeadFilter, page: Page) -> Result<Vec<DeadSummary>> {
        let now = self.now();
        let state = self.lock();
        let mut found: Vec<DeadSummary> = dead(&state, filter, now).collect();
        found.sort_by_key(|summary| summary.position);
        let after = |summary: &DeadSummary| page.after.is_none_or(|after| summary.position > after);
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        Ok(found.into_iter().filter(after).take(limit).collect())
    }

    async fn get(&self, event_id: Uuid) -> Result<Option<DeadLetter>> {
        let now = self.now();
        let state = self.lock();
        let letter = state
            .lanes()
            .flat_map(|lane| lane.parked.iter())
            .filter(|parked| parked.row.id() == event_id)
            .find_map(|parked| {
                let counters = Counters {
                    attempts: parked.attempts,
                    crashes: parked.crashes,
                    failing_for: parked.first_failed.map(|first| now.saturating_sub(first)),
                };
                Some(DeadLetter {
                    summary: summary(parked)?,
                    event: parked
                        .row
                        .read(counters)
                        .map_err(|unreadable| unreadable.error),
                })
            });
        Ok(letter)
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        let now = self.now();
        let state = self.lock();
        Ok(u64::try_from(dead(&state, filter, now).count()).unwrap_or(u64::MAX))
    }

    async fn groups(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadGroup>> {
        let now = self.now();
        let state = self.lock();
        let mut counts = BTreeMap::<_, u64>::new();
        for letter in dead(&state, filter, now) {
            let alike = (letter.topic, letter.event_type, letter.note.kind);
            *counts.entry(alike).or_default() += 1;
        }
        let mut groups: Vec<DeadGroup> = counts
            .into_iter()
            .map(|((topic, event_type, error_kind), count)| DeadGroup {
                topic,
                event_type,
                error_kind,
                count,
            })
            .collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(groups)
    }

    async fn requeue(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        let now = self.now();
        let moved = each_dead(self, filter, limit, |lane, position| {
            let behind = lane.mutated(Mutation::RequeueBehindFollowers);
            lane.parked.update(position, |parked| requeue(parked, now));
            if behind {
                let due = now.saturating_add(Duration::from_millis(200));
                let state = ParkedState::Scheduled { due };
                lane.parked.update(position, |parked| parked.state = state);
            }
        });
        self.ring();
        Ok(moved)
    }

    async fn discard(&self, filter: &DeadFilter, limit: u32) -> Result<u64> {
        let removed = each_dead(self, filter, limit, |lane, position| {
            if let Some(parked) = lane.parked.remove(position)
                && parked.blocks()
                && let Some(key) = parked.row.key()
            {
                lane.free(key);
            }
        });
        self.ring();
        Ok(removed)
    }
}

/// Due at once. One that held its key goes before its followers, by its position; one that did not
/// must not hold them now, since they went on without it.
fn requeue(parked: &mut Parked, now: Duration) {
    parked.state = if parked.blocks() {
        ParkedState::Retry { due: now }
    } else {
        ParkedState::Scheduled { due: now }
    };
    parked.attempts = 0;
    parked.crashes = 0;
    parked.first_failed = None;
    parked.last_failed = None;
    parked.note = FailureNote::default();
}

/// Does something to the oldest dead letters that fit; returns to how many.
fn each_dead(
    store: &MemoryStore,
    filter: &DeadFilter,
    limit: u32,
    mut act: impl FnMut(&mut LaneState, i64),
) -> u64 {
    let now = store.now();
    let mut state = store.lock();
    let mut found: Vec<i64> = dead(&state, filter, now)
        .map(|summary| summary.position.0)
        .collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    for lane in state.lanes_mut() {
        for position in &found {
            if lane.parked.get(*position).is_some_and(Parked::is_dead) {
                act(lane, *position);
            }
        }
    }
    u64::try_from(found.len()).unwrap_or(u64::MAX)
}

fn dead<'a>(
    state: &'a State,
    filter: &'a DeadFilter,
    now: Duration,
) -> impl Iterator<Item = DeadSummary> + 'a {
    state
        .lanes()
        .flat_map(|lane| lane.parked.iter())
        .filter(move |parked| match (&parked.state, filter.dead_for) {
            (ParkedState::Dead { at, .. }, Some(age)) => now.saturating_sub(*at) >= age,
            _ => true,
        })
        .filter_map(summary)
        .filter(|summary| fits(summary, filter))
}

fn fits(summary: &DeadSummary, filter: &DeadFilter) -> bool {
    (filter.ids.is_empty() || filter.ids.contains(&summary.event_id))
        && filter
            .topic
            .as_ref()
            .is_none_or(|topic| *topic == summary.topic)
        && (filter.key.is_none() || filter.key == summary.key)
        && filter
            .event_type
            .as_ref()
            .is_none_or(|of| *of == summary.event_type)
        && (filter.error_kind.is_none() || filter.error_kind == summary.note.kind)
}

fn summary(parked: &Parked) -> Option<DeadSummary> {
    let (reason, at): (DeadReason, Duration) = match parked.state {
        ParkedState::Dead { reason, at, .. } => (reason, at),
        _ => return None,
    };
    let row = &parked.row;
    Some(DeadSummary {
        position: Position(row.position),
        event_id: row.id(),
        topic: row.topic().to_owned(),
        key: row.key().map(ToOwned::to_owned),
        event_type: row.event_type().to_owned(),
        attempts: parked.attempts,
        reason,
        note: parked.note.clone(),
        created_at: wall(row.created),
        dead_at: wall(at),
    })
}
