//! What the store knows of one lane of one route: cursors, claims in flight, parked events, crash
//! marks. Pure: the caller passes the time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use outbox_core::{BatchSource, BatchToken, ClaimLimit, Settled, TopicSet, WorkerId};

use super::{
    mutation::Mutation,
    parked::{Parked, ParkedSet, ParkedState},
    row::{Counters, Row},
};

/// Answers of settled batches that are kept for a caller that lost one.
const ANSWERS_MAX: usize = 64;

/// A batch that is claimed and not settled.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) token: BatchToken,
    pub(super) source: BatchSource,
    pub(super) rows: Vec<Arc<Row>>,
    pub(super) lease_end: Duration,
    /// Where the stream's cursor goes when the batch is settled.
    end: i64,
    /// Holds events that were in flight at a crash, and flies alone.
    suspect: bool,
}

/// A lane of a route.
#[derive(Debug, Default)]
pub(super) struct LaneState {
    pub(super) owner: Option<WorkerId>,
    /// The fence: rises with each owner.
    pub(super) epoch: u64,
    pub(super) lease_end: Duration,
    /// Behind this position the stream is not read yet.
    pub(super) read: i64,
    /// Up to this position everything is settled or parked.
    pub(super) settled: i64,
    pub(super) flights: VecDeque<Flight>,
    pub(super) parked: ParkedSet,
    /// When rows were delivered, as long as they are in the log.
    pub(super) delivered: BTreeMap<i64, Duration>,
    /// Crash marks of events of the stream.
    suspects: BTreeMap<i64, u32>,
    /// Rows behind the settled cursor that the reader itself parked as scheduled.
    set_aside: BTreeSet<i64>,
    /// Keys of which the last parked event went, still to be told.
    freed: BTreeSet<String>,
    answers: VecDeque<(BatchToken, Settled)>,
    stream_next: bool,
    lax: bool,
    mutation: Option<Mutation>,
}

/// What a claim took.
pub(super) struct Taken {
    pub(super) source: BatchSource,
    pub(super) rows: Vec<(Arc<Row>, Counters)>,
    pub(super) more: bool,
}

impl LaneState {
    pub(super) fn new(lax: bool, mutation: Option<Mutation>) -> Self {
        Self {
            lax,
            mutation,
            ..Self::default()
        }
    }

    pub(super) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Whether a worker may take the lane.
    pub(super) fn is_free(&self, now: Duration) -> bool {
        self.owner.is_none() || self.lease_end <= now
    }

    /// Hands the lane to a worker. What the former owner had in flight counts as a crash.
    pub(super) fn take_over(&mut self, worker: WorkerId, lease_end: Duration) {
        self.lose(|_| true);
        if self.mutated(Mutation::CrashWithoutFlight) {
            *self.suspects.entry(self.settled + 1).or_default() += 1;
        }
        self.freed.clear();
        self.answers.clear();
        self.owner = Some(worker);
        self.epoch += 1;
        self.lease_end = lease_end;
    }

    /// Takes back everything that is in flight, as a clean stop: no crash, attempts restored.
    pub(super) fn give_back(&mut self) {
        for flight in std::mem::take(&mut self.flights) {
            if flight.source == BatchSource::Parked {
                for row in &flight.rows {
                    self.parked.update(row.position, |parked| {
                        parked.in_flight = false;
                        parked.attempts = parked.attempts.saturating_sub(1);
                    });
                }
            }
        }
        self.read = self.settled;
        self.owner = None;
    }

    /// Drops batches whose lease ended; later ones of the stream go with the first such.
    pub(super) fn drop_expired(&mut self, now: Duration) {
        self.lose(|flight| flight.lease_end <= now);
    }

    /// Crash marks for the lost batches; the stream is read again from the first of them.
    fn lose(&mut self, lost: impl Fn(&Flight) -> bool) {
        let keeps_next = self.mutated(Mutation::DroppedBatchKeepsNext);
        let mut stream_lost = false;
        for flight in std::mem::take(&mut self.flights) {
            let crashed = lost(&flight);
            match flight.source {
                BatchSource::Stream if crashed || stream_lost && !keeps_next => {
                    stream_lost = true;
                    for row in flight.rows.iter().filter(|_| crashed) {
                        *self.suspects.entry(row.position).or_default() += 1;
                    }
                }
                BatchSource::Parked if crashed => {
                    for row in &flight.rows {
                        self.parked.update(row.position, |parked| {
                            parked.in_flight = false;
                            parked.crashes += 1;
                        });
                    }
                }
                _ => self.flights.push_back(flight),
            }
        }
        if stream_lost {
            let kept = self
                .flights
                .iter()
                .filter(|flight| flight.source == BatchSource::Stream);
            self.read = kept.map(|flight| flight.end).max().unwrap_or(self.settled);
        }
    }

    /// Takes the next events: parked ones and the stream in turns, so that neither starves.
    pub(super) fn claim(
        &mut self,
        log: &BTreeMap<i64, Arc<Row>>,
        topics: &TopicSet,
        now: Duration,
        limit: ClaimLimit,
    ) -> Option<Taken> {
        if self.flights.iter().any(|flight| flight.suspect) {
            return None;
        }
        let stream_first = std::mem::take(&mut self.stream_next);
        let taken = if stream_first {
            self.claim_stream(log, topics, now, limit)
                .or_else(|| self.claim_parked(now, limit))
        } else {
            self.claim_parked(now, limit)
                .or_else(|| self.claim_stream(log, topics, now, limit))
        };
        self.stream_next = taken
            .as_ref()
            .is_some_and(|taken| taken.source == BatchSource::Parked);
        taken
    }

    fn claim_parked(&mut self, now: Duration, limit: ClaimLimit) -> Option<Taken> {
        let passes = self.mutated(Mutation::ScheduledPassesStream);
        let settled = if passes { i64::MAX } else { self.settled };
        let ready = self.parked.ready(now, settled);
        let (suspects, sound): (Vec<_>, Vec<_>) = ready
            .into_iter()
            .filter_map(|position| self.parked.get(position))
            .map(|parked| (parked.crashes, Arc::clone(&parked.row)))
            .partition(|(crashes, _)| *crashes > 0);
        let marks: Vec<u32> = suspects.iter().map(|(crashes, _)| *crashes).collect();
        let alone = if sound.is_empty() {
            self.suspects_taken(&marks)
        } else {
            0
        };
        if alone > 0 && !self.flights.is_empty() {
            return None;
        }
        let rows = if alone > 0 {
            suspects.into_iter().take(alone).collect()
        } else {
            sound
        };
        let (rows, more) = cut(rows.into_iter().map(|(_, row)| row), limit);
        if rows.is_empty() {
            return None;
        }
        let counted = 1 + u32::from(self.mutated(Mutation::AttemptsCountedTwice));
        let rows = rows
            .into_iter()
            .map(|row| {
                self.parked.update(row.position, |parked| {
                    parked.in_flight = true;
                    parked.attempts = parked.attempts.saturating_add(counted);
                });
                let counters = self
                    .parked
                    .get(row.position)
                    .map_or(FIRST, |parked| Counters {
                        attempts: parked.attempts,
                        crashes: parked.crashes,
                        failing_for: parked.first_failed.map(|first| now.saturating_sub(first)),
                    });
                (row, counters)
            })
            .collect();
        Some(Taken {
            source: BatchSource::Parked,
            rows,
            more,
        })
    }

    fn claim_stream(
        &mut self,
        log: &BTreeMap<i64, Arc<Row>>,
        topics: &TopicSet,
        now: Duration,
        limit: ClaimLimit,
    ) -> Option<Taken> {
        let mut wanted = Vec::new();
        for (position, row) in log.range(self.read + 1..) {
            if wanted.len() > limit.events {
                break;
            }
            if !topics.matches(row.topic()) || self.set_aside.contains(position) {
                continue;
            }
            let due = if self.mutated(Mutation::ClockPutsOff) {
                row.due().max(row.created)
            } else {
                row.due()
            };
            if due > now {
                let state = ParkedState::Scheduled { due };
                self.parked.insert(Parked::new(Arc::clone(row), state));
                self.set_aside.insert(*position);
                continue;
            }
            wanted.push(Arc::clone(row));
        }
        let marks: Vec<u32> = wanted.iter().map(|row| self.mark(row.position)).collect();
        let suspect = marks.first().is_some_and(|mark| *mark > 0);
        if suspect && !self.flights.is_empty() {
            return None;
        }
        let take = if suspect {
            self.suspects_taken(&marks)
        } else {
            marks.iter().take_while(|mark| **mark == 0).count()
        };
        let left_out = wanted.len() > take;
        let (rows, cut) = cut(wanted.into_iter().take(take), limit);
        let Some(last) = rows.last() else {
            if self.flights.is_empty() {
                // Nothing here for this route: the cursor need not come back.
                self.read = log.last_key_value().map_or(self.read, |(last, _)| *last);
                self.settle_up_to(self.read);
            }
            return None;
        };
        self.read = last.position;
        let rows = rows
            .into_iter()
            .map(|row| {
                let crashes = self.mark(row.position);
                let attempts = crashes.saturating_add(1);
                (
                    row,
                    Counters {
                        attempts,
                        crashes,
                        failing_for: None,
                    },
                )
            })
            .collect();
        Some(Taken {
            source: BatchSource::Stream,
            rows,
            more: cut || left_out,
        })
    }

    /// Notes a claim as in flight.
    pub(super) fn launch(&mut self, claimed: &Taken, token: BatchToken, lease_end: Duration) {
        self.flights.push_back(Flight {
            token,
            source: claimed.source,
            rows: claimed
                .rows
                .iter()
                .map(|(row, _)| Arc::clone(row))
                .collect(),
            lease_end,
            end: self.read,
            suspect: claimed
                .rows
                .iter()
                .any(|(_, counters)| counters.crashes > 0),
        });
    }

    /// How often a process died with this event of the stream in flight.
    pub(super) fn mark(&self, position: i64) -> u32 {
        self.suspects.get(&position).copied().unwrap_or_default()
    }

    pub(super) fn clear_mark(&mut self, position: i64) {
        self.suspects.remove(&position);
    }

    /// Moves the durable cursor.
    pub(super) fn settle_up_to(&mut self, position: i64) {
        self.settled = self.settled.max(position);
        self.set_aside = self.set_aside.split_off(&(self.settled + 1));
    }

    /// The cursor goes back to the settled one; what was read behind it is no batch any more.
    pub(super) fn rewind(&mut self) {
        self.read = self.settled;
        self.flights
            .retain(|flight| flight.source == BatchSource::Parked);
    }

    /// The last parked event of this key may have gone.
    pub(super) fn free(&mut self, key: &str) {
        self.freed.insert(key.to_owned());
    }

    /// Keys to be told as unblocked: nothing parked, and no batch in flight that was claimed while
    /// they were blocked and may still be settled as held.
    pub(super) fn tell_unblocked(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        for key in std::mem::take(&mut self.freed) {
            if self.parked.blocks(&key) {
                continue;
            }
            let in_flight = self
                .flights
                .iter()
                .flat_map(|flight| &flight.rows)
                .any(|row| row.key() == Some(&key));
            if in_flight && !self.lax {
                self.freed.insert(key);
            } else {
                told.push(key);
            }
        }
        told
    }

    /// Keeps the answer of a settle, should the caller lose it.
    pub(super) fn remember(&mut self, token: BatchToken, answer: &Settled) {
        if self.answers.len() == ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((token, answer.clone()));
    }

    pub(super) fn remembered(&self, wanted: BatchToken) -> Option<&Settled> {
        self.answers
            .iter()
            .find_map(|(of, answer)| (*of == wanted).then_some(answer))
    }

    /// Where the cursor goes when this batch is settled whole.
    pub(super) fn end_of(flight: &Flight) -> i64 {
        flight.end
    }
}

const FIRST: Counters = Counters {
    attempts: 1,
    crashes: 0,
    failing_for: None,
};

impl LaneState {
    fn suspects_taken(&self, marks: &[u32]) -> usize {
        if self.mutated(Mutation::SuspectsTogether) {
            return marks.iter().take_while(|mark| **mark > 0).count();
        }
        suspects_taken(marks)
    }
}

/// How many of these suspects, the first of which is one, may fly together: half of those with one
/// crash, and one alone from the second crash on (I9).
fn suspects_taken(marks: &[u32]) -> usize {
    match marks.first() {
        None => 0,
        Some(1) => marks
            .iter()
            .take_while(|mark| **mark == 1)
            .count()
            .div_ceil(2),
        Some(_) => 1,
    }
}

/// The longest run within the limit; the first row is in whatever its size.
fn cut(rows: impl Iterator<Item = Arc<Row>>, limit: ClaimLimit) -> (Vec<Arc<Row>>, bool) {
    let mut taken: Vec<Arc<Row>> = Vec::new();
    let mut bytes = 0usize;
    for row in rows {
        bytes = bytes.saturating_add(row.bytes);
        let full = taken.len() >= limit.events.max(1) || bytes > limit.bytes;
        if full && !taken.is_empty() {
            return (taken, true);
        }
        taken.push(row);
    }
    (taken, false)
}
