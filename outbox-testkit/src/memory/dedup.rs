//! Producers' dedup keys.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

/// The keys that are known, and when the transaction that took one has committed, if it has.
#[derive(Debug, Default)]
pub(super) struct DedupKeys {
    taken: Mutex<BTreeMap<String, Option<Duration>>>,
    ended: Notify,
}

impl DedupKeys {
    /// Takes a key for a transaction; false when it is taken until it is forgotten.
    pub(super) async fn take(&self, key: &str) -> bool {
        loop {
            let ended = self.ended.notified();
            {
                let mut taken = self.lock();
                match taken.get(key) {
                    None => {
                        taken.insert(key.to_owned(), None);
                        return true;
                    }
                    Some(Some(_)) => return false,
                    Some(None) => {}
                }
            }
            ended.await;
        }
    }

    /// A transaction with these keys ended: by a commit at this moment, or rolled back.
    pub(super) fn end(&self, keys: Vec<String>, committed: Option<Duration>) {
        if keys.is_empty() {
            return;
        }
        let mut taken = self.lock();
        for key in keys {
            if committed.is_some() {
                taken.insert(key, committed);
            } else {
                taken.remove(&key);
            }
        }
        drop(taken);
        self.ended.notify_waiters();
    }

    /// Forgets up to `keys_max` keys of transactions that committed at this moment or before; says
    /// how many, and whether the bound cut it.
    pub(super) fn forget(&self, until: Duration, keys_max: usize) -> (usize, bool) {
        let mut taken = self.lock();
        let mut left = keys_max;
        let mut cut = false;
        let before = taken.len();
        taken.retain(|_, at| {
            let goes = is_old(*at, until) && left > 0;
            cut |= is_old(*at, until) && left == 0;
            left -= usize::from(goes);
            !goes
        });
        (before - taken.len(), cut)
    }

    /// How many keys are as old as that.
    pub(super) fn old(&self, until: Duration) -> usize {
        let taken = self.lock();
        taken.values().filter(|at| is_old(**at, until)).count()
    }

    /// No call awaits under the lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Option<Duration>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_old(committed: Option<Duration>, until: Duration) -> bool {
    committed.is_some_and(|at| at <= until)
}
