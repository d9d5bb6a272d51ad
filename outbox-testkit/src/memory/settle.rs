//! Writing the verdicts on a batch: all of them or none.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outbox_core::{
    BatchSource, BatchToken, Error, ErrorKind, FailureNote, Result, Settled, Settlement, Verdict,
};

use super::{
    lane_state::{Flight, LaneState},
    mutation::Mutation,
    parked::{Parked, ParkedState},
    row::Row,
};

impl LaneState {
    /// Settles a batch. A repeated call gets the first one's answer; a batch that was lost is told
    /// as such and changes nothing.
    pub(super) fn settle(
        &mut self,
        now: Duration,
        token: BatchToken,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        if let Some(answer) = self.remembered(token) {
            return Ok(answer.clone());
        }
        let Some(index) = self.flights.iter().position(|flight| flight.token == token) else {
            let lost = u64::try_from(settlements.len()).unwrap_or(u64::MAX);
            return Ok(Settled {
                lost,
                ..Settled::default()
            });
        };
        let verdicts = check(&self.flights[index], settlements)?;
        let source = self.flights[index].source;
        if source == BatchSource::Stream
            && self
                .flights
                .iter()
                .take(index)
                .any(|flight| flight.source == source)
        {
            return Err(broken(
                "a batch of the stream was settled before an earlier one",
            ));
        }
        let Some(flight) = self.flights.remove(index) else {
            return Err(broken("a batch vanished"));
        };
        match source {
            BatchSource::Stream => self.settle_stream(now, &flight, &verdicts),
            BatchSource::Parked => self.settle_parked(now, &flight, &verdicts),
        }
        let answer = Settled {
            applied: u64::try_from(verdicts.len()).unwrap_or(u64::MAX),
            lost: 0,
            unblocked: self.tell_unblocked(),
        };
        self.remember(token, &answer);
        Ok(answer)
    }

    fn settle_stream(
        &mut self,
        now: Duration,
        flight: &Flight,
        verdicts: &BTreeMap<i64, &Verdict>,
    ) {
        let mut last = None;
        let forgotten = flight.rows.last().filter(|row| {
            let verdict = verdicts.get(&row.position);
            verdict.is_some_and(|verdict| **verdict != Verdict::Return)
                && self.mutated(Mutation::LastVerdictForgotten)
        });
        let forgotten = forgotten.map(|row| row.position);
        for row in &flight.rows {
            if Some(row.position) == forgotten {
                continue;
            }
            let attempts = self.mark(row.position).saturating_add(1);
            self.clear_mark(row.position);
            let Some(verdict) = verdicts.get(&row.position) else {
                continue;
            };
            if **verdict == Verdict::Return {
                for rest in &flight.rows {
                    self.clear_mark(rest.position);
                }
                self.settle_up_to(last.unwrap_or(self.settled));
                self.rewind();
                return;
            }
            if **verdict == Verdict::Done {
                self.delivered.insert(row.position, now);
            }
            let fresh = Parked {
                attempts,
                ..Parked::new(Arc::clone(row), ParkedState::Held)
            };
            if let Some(parked) = park(fresh, verdict, now) {
                self.park(parked);
            }
            last = Some(row.position);
        }
        self.settle_up_to(Self::end_of(flight));
    }

    fn park(&mut self, mut parked: Parked) {
        if self.mutated(Mutation::ParkedEventChanges) {
            parked.row = Arc::new(parked.row.changed());
        }
        self.parked.insert(parked);
    }

    fn settle_parked(
        &mut self,
        now: Duration,
        flight: &Flight,
        verdicts: &BTreeMap<i64, &Verdict>,
    ) {
        for row in &flight.rows {
            let Some(verdict) = verdicts.get(&row.position) else {
                continue;
            };
            let Some(mut parked) = self.parked.remove(row.position) else {
                continue;
            };
            if **verdict == Verdict::Done {
                self.delivered.insert(row.position, now);
            }
            let blocked = parked.blocks();
            parked.in_flight = false;
            parked.crashes = 0;
            if let Some(parked) = park(parked, verdict, now) {
                self.parked.insert(parked);
            }
            if let Some(key) = row.key().filter(|_| blocked) {
                self.free(key);
            }
        }
    }
}

/// What becomes of a row: parked in its next state, or gone.
fn park(mut parked: Parked, verdict: &Verdict, now: Duration) -> Option<Parked> {
    let fail = |parked: &mut Parked, note: &FailureNote| {
        parked.first_failed.get_or_insert(now);
        parked.last_failed = Some(now);
        parked.note = note.clone();
    };
    match verdict {
        Verdict::Done => return None,
        Verdict::Retry { after, note } => {
            fail(&mut parked, note);
            parked.state = ParkedState::Retry {
                due: now.saturating_add(*after),
            };
        }
        Verdict::Defer { after, note } => {
            fail(&mut parked, note);
            parked.attempts = parked.attempts.saturating_sub(1);
            parked.state = ParkedState::Retry {
                due: now.saturating_add(*after),
            };
        }
        Verdict::Hold => {
            parked.attempts = parked.attempts.saturating_sub(1);
            parked.state = ParkedState::Held;
        }
        Verdict::Return => parked.attempts = parked.attempts.saturating_sub(1),
        Verdict::Dead {
            reason,
            note,
            hold_key,
        } => {
            fail(&mut parked, note);
            parked.state = ParkedState::Dead {
                reason: *reason,
                at: now,
                hold_key: *hold_key && parked.row.key().is_some(),
            };
        }
    }
    Some(parked)
}

/// One verdict for each event of the batch, and returned ones only at the end of the stream's.
fn check<'a>(flight: &Flight, settlements: &'a [Settlement]) -> Result<BTreeMap<i64, &'a Verdict>> {
    let verdicts: BTreeMap<i64, &Verdict> = settlements
        .iter()
        .map(|settlement| (settlement.position.0, &settlement.verdict))
        .collect();
    let known = |row: &Arc<Row>| verdicts.contains_key(&row.position);
    if verdicts.len() != settlements.len()
        || verdicts.len() != flight.rows.len()
        || !flight.rows.iter().all(known)
    {
        return Err(broken(
            "a settle needs one verdict for each event of its batch",
        ));
    }
    let mut returned = false;
    for verdict in verdicts.values() {
        if returned && **verdict != Verdict::Return && flight.source == BatchSource::Stream {
            return Err(broken(
                "everything behind a returned event must be returned",
            ));
        }
        returned |= **verdict == Verdict::Return;
    }
    Ok(verdicts)
}

fn broken(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, "settle", what)
}
