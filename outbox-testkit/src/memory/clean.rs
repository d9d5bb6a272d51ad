//! Cleaning: rows leave the log when every route has delivered or passed them. Always under the
//! store's lock, so there never is another cleaner at work.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{CleanRequest, Cleaned, Result, Retention};

use super::{state::State, store::MemoryStore};

#[async_trait]
impl Retention for MemoryStore {
    async fn clean(&self, request: &CleanRequest) -> Result<Cleaned> {
        let now = self.now();
        let rows_max = usize::try_from(request.rows_max).unwrap_or(usize::MAX);
        let mut cleaned = Cleaned::default();
        // Before the store is as old as that, nothing can be.
        if let Some(until) = now.checked_sub(request.retention) {
            let mut state = self.lock();
            let old = old(&state, until);
            for (lane, position) in old.iter().take(rows_max) {
                remove(&mut state, *lane, *position);
            }
            cleaned.events = count(old.len().min(rows_max));
            cleaned.more = old.len() > rows_max;
        }
        if let Some(until) = now.checked_sub(request.dedup_retention) {
            let (keys, more) = self.forget_keys(until, rows_max);
            cleaned.dedup_keys = count(keys);
            cleaned.more |= more;
        }
        Ok(cleaned)
    }

    async fn removable(&self, request: &CleanRequest) -> Result<Cleaned> {
        let now = self.now();
        let until = |age| now.checked_sub(age);
        let events = until(request.retention).map(|until| old(&self.lock(), until).len());
        let dedup_keys = until(request.dedup_retention).map(|until| self.old_keys(until));
        Ok(Cleaned {
            events: count(events.unwrap_or(0)),
            dedup_keys: count(dedup_keys.unwrap_or(0)),
            ..Cleaned::default()
        })
    }
}

/// Lane and position of rows that were delivered at this moment or before, by the last of their
/// routes, and that no route still has to do something about.
fn old(state: &State, until: Duration) -> Vec<(usize, i64)> {
    let rows = state
        .log
        .iter()
        .enumerate()
        .flat_map(|(lane, log)| log.keys().map(move |position| (lane, *position)));
    rows.filter(|(index, position)| {
        let lanes = || state.routes.values().map(|route| &route.lanes[*index]);
        let over =
            lanes().all(|lane| lane.settled >= *position && lane.parked.get(*position).is_none());
        // A route that passed the row by, and one whose operator discarded it, delivered nothing.
        let last = lanes()
            .filter_map(|lane| lane.delivered.get(position))
            .max();
        over && last.is_some_and(|at| *at <= until)
    })
    .collect()
}

fn remove(state: &mut State, index: usize, position: i64) {
    state.log[index].remove(&position);
    for route in state.routes.values_mut() {
        route.lanes[index].delivered.remove(&position);
    }
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}
