//! Which call meets which fault.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

type Rule<C, F> = Box<dyn FnMut(&C, u64) -> Option<F> + Send>;

/// Faults by call. Calls are counted from 1, each sort of its own; first what was planned for a
/// number is taken, then what the rule says.
pub struct Script<C, F>(Mutex<Inner<C, F>>);

struct Inner<C, F> {
    counts: BTreeMap<C, u64>,
    planned: BTreeMap<(C, u64), F>,
    rule: Option<Rule<C, F>>,
}

impl<C: Ord + Copy, F> Default for Script<C, F> {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            counts: BTreeMap::new(),
            planned: BTreeMap::new(),
            rule: None,
        }))
    }
}

impl<C: Ord + Copy, F> Script<C, F> {
    /// The call of this sort that comes as the `nth` from now (1 = the next) meets the fault.
    pub fn nth(&self, call: C, nth: u64, fault: F) {
        let mut inner = self.lock();
        let at = inner.counts.get(&call).copied().unwrap_or_default() + nth.max(1);
        inner.planned.insert((call, at), fault);
    }

    /// The next calls of this sort meet these faults, one each.
    pub fn next(&self, call: C, faults: impl IntoIterator<Item = F>) {
        for (nth, fault) in (1..).zip(faults) {
            self.nth(call, nth, fault);
        }
    }

    /// Every call is asked about, with its number; `None` lets it pass.
    pub fn rule(&self, rule: impl FnMut(&C, u64) -> Option<F> + Send + 'static) {
        self.lock().rule = Some(Box::new(rule));
    }

    /// Forgets what was planned and the rule; counts go on.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.planned.clear();
        inner.rule = None;
    }

    /// How many calls of this sort were made.
    pub fn count(&self, call: C) -> u64 {
        self.lock().counts.get(&call).copied().unwrap_or_default()
    }

    /// Counts a call and gives its fault.
    pub(super) fn take(&self, call: C) -> Option<F> {
        let mut inner = self.lock();
        let count = inner.counts.entry(call).or_default();
        *count += 1;
        let number = *count;
        let planned = inner.planned.remove(&(call, number));
        planned.or_else(|| inner.rule.as_mut().and_then(|rule| rule(&call, number)))
    }

    /// A rule that panics poisons nothing of ours.
    fn lock(&self) -> MutexGuard<'_, Inner<C, F>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
