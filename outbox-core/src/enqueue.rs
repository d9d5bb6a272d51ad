//! Writing events in the caller's own transaction.

use crate::{
    error::{Error, ErrorKind, Result},
    event::Event,
};

/// What became of an event that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It exists when the transaction commits.
    Written,
    /// Its [dedup key](crate::EventBuilder::dedup_key) is known already, from a committed
    /// transaction or from earlier in this one: nothing was written, and nothing failed.
    Duplicate,
}

/// Writes events on a connection of the caller's, inside the caller's transaction.
///
/// Effect: one INSERT a call; the events exist when the caller's transaction commits and never when
/// it rolls back (I1). Guarantees: no lock shared with other writers, and no failure caused by the
/// relay's state (I13). Duplicates: enqueuing one event twice writes two rows with the same id,
/// which consumers drop by that id; an event with a dedup key is written once for that key, also by
/// writers at the same time: the later one waits until the transaction of the earlier one ends, and
/// writes if that rolled back. Order: within a transaction as given; a batch with dedup keys may be
/// written in the order of these, so that two such batches can't block each other, where the store
/// promises no order. Cancellation: the caller's transaction is then in doubt and must be rolled
/// back, as with any statement. Errors: `Configuration` outside a transaction, `SchemaMissing`,
/// `Unauthorized`, or the driver's failure; the caller's transaction can't be committed afterwards.
pub trait Enqueue<Conn: ?Sized>: Send + Sync {
    /// Writes one event, unless its dedup key is known.
    fn enqueue(
        &self,
        conn: &mut Conn,
        event: &Event,
    ) -> impl Future<Output = Result<Enqueued>> + Send;

    /// Writes several in one statement, in their order. The answer has an entry for each event, in
    /// the order of the events.
    fn enqueue_all(
        &self,
        conn: &mut Conn,
        events: &[Event],
    ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send;
}

/// For who implements [`Enqueue`]: refuses to write where the driver sees no transaction. An event
/// outside of one stays when the change that it tells of is rolled back.
///
/// # Errors
/// `Configuration`, with what to do.
pub fn demand_transaction(operation: &'static str, is_seen: bool) -> Result<()> {
    if is_seen {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Configuration,
        operation,
        "the connection is in no transaction that the driver knows; pass &mut *tx of a transaction, or allow_autocommit",
    ))
}
