//! Events that no other change belongs to.

use outbox_core::{Enqueue as _, Enqueued, Event, Result};

use super::SqliteQueue;
use crate::enqueue::SqliteOutbox;

impl SqliteQueue {
    /// Writes events in a transaction of their own: for trials, tools and events without a change.
    /// A service writes by [`SqliteOutbox`] in the transaction of its change.
    ///
    /// Effect: all of them or none, in their order, but for those whose dedup key is known: the answer
    /// tells. Wakes relays on this handle. Cancellation: all or nothing was written.
    ///
    /// # Errors
    /// As [`Enqueue`](outbox_core::Enqueue) says, and failures of the file.
    pub async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        let mut write = self.0.database.write("enqueue").await?;
        let told = SqliteOutbox::new()
            .enqueue_all(&mut write.tx, events)
            .await?;
        write.commit().await?;
        self.0.bell.notify_waiters();
        Ok(told)
    }
}
