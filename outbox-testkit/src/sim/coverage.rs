//! Where processes died, and what had become of the events that they had in flight.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use outbox_core::{BatchToken, Scope};
use uuid::Uuid;

use super::scenario::POINTS;
use crate::invariants::{Answer, Fact, History};

/// Deaths by place and by the publisher's last word on an event in flight; `None` where the event was
/// not sent, or its answer did not come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    cells: BTreeMap<(&'static str, Option<Answer>), u64>,
    deaths: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub(super) fn of(history: &History) -> Self {
        let mut coverage = Self::default();
        // What each process has claimed and not settled.
        let mut open: BTreeMap<u32, BTreeMap<BatchToken, Vec<Uuid>>> = BTreeMap::new();
        let mut answers: BTreeMap<Uuid, Answer> = BTreeMap::new();
        // A settle that was carried out and not answered.
        let mut settled: BTreeMap<u32, Vec<Uuid>> = BTreeMap::new();
        for (_, fact) in &history.facts {
            match fact {
                Fact::Claimed {
                    process,
                    token,
                    events,
                    ..
                } => {
                    let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
                    for id in &ids {
                        answers.remove(id);
                    }
                    open.entry(*process).or_default().insert(*token, ids);
                }
                Fact::Answered { answers: of, .. } => answers.extend(of.iter().copied()),
                Fact::Settled { process, token, .. } => {
                    let claims = open.entry(*process).or_default();
                    settled.insert(*process, claims.remove(token).unwrap_or_default());
                }
                Fact::Died { process, point } => {
                    *coverage.deaths.entry(point).or_default() += 1;
                    let claims = open.remove(process).unwrap_or_default();
                    let mut ids: BTreeSet<Uuid> = claims.into_values().flatten().collect();
                    if *point == "settle: answer" {
                        ids.extend(settled.remove(process).unwrap_or_default());
                    }
                    for id in ids {
                        let cell = (*point, answers.get(&id).copied());
                        *coverage.cells.entry(cell).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        coverage
    }

    /// Adds what another run covered.
    pub fn add(&mut self, other: &Self) {
        for (cell, count) in &other.cells {
            *self.cells.entry(*cell).or_default() += count;
        }
        for (point, count) in &other.deaths {
            *self.deaths.entry(point).or_default() += count;
        }
    }

    /// Every answer that there is, and none.
    pub fn answers() -> Vec<Option<Answer>> {
        let scopes = [Scope::Message, Scope::Topic, Scope::Destination];
        let wide: [fn(Scope) -> Answer; 3] = [Answer::Rejected, Answer::Failed, Answer::Unknown];
        let of_scopes = wide
            .iter()
            .flat_map(|of| scopes.map(|scope| Some(of(scope))));
        [None, Some(Answer::Delivered)]
            .into_iter()
            .chain(of_scopes)
            .collect()
    }

    /// How many events were in flight with this answer at a death at this place.
    pub fn count(&self, point: &str, answer: Option<Answer>) -> u64 {
        let cells = self
            .cells
            .iter()
            .filter(|((at, of), _)| *at == point && *of == answer);
        cells.map(|(_, count)| count).sum()
    }

    /// Every place at which a process may die.
    pub fn all_points() -> [&'static str; 17] {
        POINTS
    }

    /// Places at which processes died.
    pub fn points(&self) -> BTreeSet<&'static str> {
        self.deaths.keys().copied().collect()
    }
}

impl fmt::Display for Coverage {
    /// A row per place, a column per answer: R, F, U for rejected, failed, unknown in the scope of the
    /// message, the topic or the destination.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            "none", "done", "R mess", "R topi", "R dest", "F mess", "F topi", "F dest", "U mess",
            "U topi", "U dest",
        ];
        write!(f, "{:<26}", "died at")?;
        for column in columns {
            write!(f, "{column:>8}")?;
        }
        writeln!(f)?;
        for point in self.points() {
            write!(f, "{point:<26}")?;
            for answer in Self::answers() {
                write!(f, "{:>8}", self.count(point, answer))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
