//! Judges a history by the invariants.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use outbox_core::Event;
use uuid::Uuid;

use super::{
    history::{History, Sighting},
    order::overtakings,
    relay,
    violation::{Violation, Violations},
};

/// Which order the store and the policy promise within a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// None.
    Unordered,
    /// Commit order; nothing passes a dead event.
    Hold,
    /// Commit order; dead events are skipped.
    Skip,
}

/// What was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Events committed.
    pub committed: usize,
    /// Of them, seen at least once.
    pub delivered: usize,
    /// Of them, never seen: dead letters, those that wait behind one, and those that an operator
    /// discarded.
    pub dead: usize,
    /// Events rolled back, none of which was seen.
    pub rolled_back: usize,
    /// Sightings beyond the first of each event.
    pub duplicates: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed: {} delivered, {} dead, 0 lost; {} rolled back, 0 seen; {} duplicates",
            self.committed, self.delivered, self.dead, self.rolled_back, self.duplicates
        )
    }
}

/// Judges a finished run: everything that should have been delivered had the time for it.
///
/// # Errors
/// Every violation that was found.
pub fn check(history: &History, order: KeyOrder) -> Result<Report, Violations> {
    let written: BTreeMap<Uuid, Sighting> = history
        .committed
        .iter()
        .chain(&history.in_doubt)
        .map(|event| (event.id(), Sighting::from(event)))
        .collect();
    let mut violations = Vec::new();
    let mut first_seen: BTreeMap<Uuid, usize> = BTreeMap::new();
    for (index, seen) in history.seen.iter().enumerate() {
        first_seen.entry(seen.id).or_insert(index);
        match written.get(&seen.id) {
            Some(original) if original == seen => {}
            Some(_) => violations.push(Violation::CopyDiffers(seen.id)),
            None if history.rolled_back.contains(&seen.id) => {
                violations.push(Violation::RolledBackSeen(seen.id));
            }
            None => violations.push(Violation::UnknownSeen(seen.id)),
        }
    }
    for event in &history.committed {
        let id = event.id();
        let visible = [&history.dead, &history.held, &history.discarded];
        if !first_seen.contains_key(&id) && !visible.iter().any(|of| of.contains(&id)) {
            violations.push(Violation::Lost(id));
        }
    }
    if order != KeyOrder::Unordered {
        overtakings(history, order, &first_seen, &mut violations);
    }
    relay::judge(history, &mut violations);
    if !violations.is_empty() {
        return Err(Violations(violations));
    }
    let ids: BTreeSet<Uuid> = history.committed.iter().map(Event::id).collect();
    let delivered = ids.iter().filter(|id| first_seen.contains_key(id)).count();
    Ok(Report {
        committed: ids.len(),
        delivered,
        dead: ids.len() - delivered,
        rolled_back: history.rolled_back.len(),
        duplicates: history.seen.len() - first_seen.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Fate, Workload, WorkloadOptions};

    /// A run in which all went well.
    fn good() -> History {
        let mut history = History::default();
        let options = WorkloadOptions {
            transactions: 50,
            keys: 5,
            ..WorkloadOptions::default()
        };
        for tx in Workload::new(options) {
            match tx.fate {
                Fate::Commit => history.committed.extend(tx.events),
                Fate::Rollback => history.rolled_back.extend(tx.events.iter().map(Event::id)),
            }
        }
        history.seen = history.committed.iter().map(Sighting::from).collect();
        history
    }

    fn broken(history: &History, order: KeyOrder) -> Vec<&'static str> {
        let violations = check(history, order).expect_err("the history was doctored");
        assert!(violations.to_string().contains("is broken"), "{violations}");
        violations.0.iter().map(Violation::invariant).collect()
    }

    /// Two positions of seen events of one key.
    fn two_of_a_key(history: &History) -> (usize, usize) {
        let key = &history.seen[0].key;
        let second = history
            .seen
            .iter()
            .skip(1)
            .position(|seen| seen.key == *key);
        (0, second.expect("few keys") + 1)
    }

    #[test]
    fn a_good_history_passes() {
        let mut history = good();
        let report = check(&history, KeyOrder::Hold).expect("all went well");
        assert_eq!(report.committed, report.delivered);
        assert_eq!((report.duplicates, report.dead), (0, 0));
        assert!(report.rolled_back > 0);

        // Copies may come later, in any order.
        history.seen.extend(history.seen.clone());
        let report = check(&history, KeyOrder::Hold).expect("copies are allowed");
        assert_eq!(report.duplicates, report.committed);
    }

    #[test]
    fn i1_a_rolled_back_event_is_noticed() {
        let mut history = good();
        let mut ghost = history.seen[0].clone();
        ghost.id = *history.rolled_back.first().expect("some were rolled back");
        history.seen.push(ghost);
        assert_eq!(broken(&history, KeyOrder::Unordered), ["I1"]);
    }

    #[test]
    fn i1_an_invented_event_is_noticed() {
        let mut history = good();
        let mut ghost = history.seen[0].clone();
        ghost.id = Uuid::nil();
        history.seen.push(ghost);
        assert_eq!(broken(&history, KeyOrder::Unordered), ["I1"]);
    }

    #[test]
    fn i2_a_lost_event_is_noticed_unless_it_is_a_dead_letter() {
        let mut history = good();
        let lost = history.seen.pop().expect("not empty");
        assert_eq!(broken(&history, KeyOrder::Unordered), ["I2"]);
        history.dead.insert(lost.id);
        let report = check(&history, KeyOrder::Hold).expect("it is visible");
        assert_eq!(report.dead, 1);
    }

    #[test]
    fn i4_a_copy_that_differs_is_noticed() {
        let doctor: [fn(&mut Sighting); 5] = [
            |copy| copy.topic.push('x'),
            |copy| copy.payload = None,
            |copy| copy.key = None,
            |copy| copy.headers.push("x", "y"),
            |copy| copy.event_type.push('x'),
        ];
        for doctor in doctor {
            let mut history = good();
            let mut copy = history.seen[3].clone();
            doctor(&mut copy);
            history.seen.push(copy);
            assert_eq!(broken(&history, KeyOrder::Unordered), ["I4"]);
        }
    }

    #[test]
    fn i5_an_overtaking_is_noticed_where_order_is_promised() {
        let mut history = good();
        let (first, second) = two_of_a_key(&history);
        history.seen.swap(first, second);
        assert!(
            broken(&history, KeyOrder::Hold)
                .iter()
                .all(|of| *of == "I5")
        );
        check(&history, KeyOrder::Unordered).expect("no order was promised");
    }

    #[test]
    fn i5_passing_a_dead_event_is_allowed_by_skip_only() {
        let mut history = good();
        let (first, _) = two_of_a_key(&history);
        let dead = history.seen.remove(first);
        history.dead.insert(dead.id);
        assert!(
            broken(&history, KeyOrder::Hold)
                .iter()
                .all(|of| *of == "I5")
        );
        check(&history, KeyOrder::Skip).expect("skipping is the policy");
    }

    #[test]
    fn an_unanswered_commit_may_be_either() {
        let mut history = good();
        let unanswered = history.committed.remove(history.committed.len() - 1);
        history.in_doubt.push(unanswered.clone());
        check(&history, KeyOrder::Unordered).expect("seen is right");
        history.seen.retain(|seen| seen.id != unanswered.id());
        check(&history, KeyOrder::Unordered).expect("not seen is right too");
    }
}
