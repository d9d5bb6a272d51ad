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
        let old = |at: &Option<Duration>| at.is_some_and(|at| at <= until);
        let keys: Vec<String> = taken
            .iter()
            .filter(|(_, at)| old(at))
            .map(|(key, _)| key.clone())
            .take(keys_max)
            .collect();
        for key in &keys {
            taken.remove(key);
        }
        (keys.len(), taken.values().any(old))
    }

    /// No call awaits under the lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Option<Duration>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
