//! Tells lanes that something changed, none twice and none never. Tokio's watch channel would do, but it
//! wakes its receivers in a random order, and a simulated relay must do the same again.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Shared {
    version: AtomicU64,
    changed: Notify,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Changes(Arc<Shared>);

impl Changes {
    pub(super) fn notify(&self) {
        self.0.version.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }

    /// One who learns of every change from now on.
    pub(super) fn watch(&self) -> Watch {
        Watch {
            seen: self.0.version.load(Ordering::SeqCst),
            changes: self.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Watch {
    changes: Changes,
    seen: u64,
}

impl Watch {
    /// Returns when something changed since the last call. Dropping the call loses no change.
    pub(super) async fn changed(&mut self) {
        loop {
            // Before the look, so that no change falls between the two.
            let changed = self.changes.0.changed.notified();
            let version = self.changes.0.version.load(Ordering::SeqCst);
            if version != self.seen {
                self.seen = version;
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn no_change_is_told_twice_or_never() {
        let changes = Changes::default();
        let mut watch = changes.watch();
        assert_eq!(watch.changed().now_or_never(), None);
        changes.notify();
        changes.notify();
        assert_eq!(watch.changed().now_or_never(), Some(()));
        assert_eq!(watch.changed().now_or_never(), None);
        let mut waiting = Box::pin(watch.changed());
        assert_eq!((&mut waiting).now_or_never(), None);
        changes.notify();
        assert_eq!(waiting.now_or_never(), Some(()));
        assert_eq!(changes.watch().changed().now_or_never(), None);
    }
}
