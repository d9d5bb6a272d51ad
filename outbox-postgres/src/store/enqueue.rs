//! Events that no other change belongs to.

use outbox_core::{Enqueue as _, Enqueued, Event, Result};

use super::PgQueue;
use crate::enqueue::PgOutbox;

/// Rows and bytes of one statement: its parameters are in memory at both ends.
const STATEMENT_EVENTS_MAX: usize = 1000;
const STATEMENT_BYTES_MAX: usize = 8 << 20;

impl PgQueue {
    /// Writes events in a transaction of their own: for trials, tools and events without a change.
    /// A service writes by [`PgOutbox`] in the transaction of its change.
    ///
    /// Effect: all of them or none, in their order, but for those whose dedup key is known: the answer
    /// tells. Needs no more than INSERT on the table, and SELECT where events have dedup keys.
    /// Cancellation: all or nothing was written.
    ///
    /// # Errors
    /// As [`Enqueue`](outbox_core::Enqueue) says, and failures of the connection.
    pub async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        const OPERATION: &str = "enqueue";
        let database = &self.0.database;
        let fail = |error: sqlx::Error| database.fail(OPERATION, &error);
        let outbox = PgOutbox::new(&self.0.config.schema)?;
        let mut connection = database.for_transaction(OPERATION).await?;
        let mut transaction = connection.begin().await.map_err(fail)?;
        let mut told = Vec::with_capacity(events.len());
        let mut rest = events;
        while !rest.is_empty() {
            let (statement, later) = rest.split_at(statement_len(rest));
            told.extend(outbox.enqueue_all(&mut transaction, statement).await?);
            rest = later;
        }
        transaction.commit().await.map_err(fail)?;
        connection.give_back();
        Ok(told)
    }
}

/// How many of the events go into the next statement: at least one.
fn statement_len(events: &[Event]) -> usize {
    let mut bytes = 0;
    let fitting = events
        .iter()
        .take(STATEMENT_EVENTS_MAX)
        .take_while(|event| {
            bytes += event.payload().map_or(0, bytes::Bytes::len);
            bytes <= STATEMENT_BYTES_MAX
        });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_bounded_in_rows_and_bytes() {
        let of = |bytes: usize| Event::new("t", "T").bytes(vec![0; bytes]).unwrap();
        assert_eq!(statement_len(&[of(1)]), 1);
        assert_eq!(statement_len(&vec![of(1); 3000]), STATEMENT_EVENTS_MAX);
        assert_eq!(statement_len(&vec![of(800_000); 30]), 10);
    }
}
