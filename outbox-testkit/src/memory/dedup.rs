//! Producers' dedup keys.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// The keys that are known, and whether the transaction that took one has committed.
#[derive(Debug, Default)]
pub(super) struct DedupKeys {
    taken: Mutex<BTreeMap<String, bool>>,
    ended: Notify,
}

impl DedupKeys {
    /// Takes a key for a transaction; false when it is taken for ever.
    pub(super) async fn take(&self, key: &str) -> bool {
        loop {
            let ended = self.ended.notified();
            {
                let mut taken = self.lock();
                match taken.get(key) {
                    None => {
                        taken.insert(key.to_owned(), false);
                        return true;
                    }
                    Some(true) => return false,
                    Some(false) => {}
                }
            }
            ended.await;
        }
    }

    /// A transaction with these keys ended.
    pub(super) fn end(&self, keys: Vec<String>, committed: bool) {
        if keys.is_empty() {
            return;
        }
        let mut taken = self.lock();
        for key in keys {
            if committed {
                taken.insert(key, true);
            } else {
                taken.remove(&key);
            }
        }
        drop(taken);
        self.ended.notify_waiters();
    }

    /// No call awaits under the lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
