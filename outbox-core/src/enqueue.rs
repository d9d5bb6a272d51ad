//! Writing events in the caller's own transaction.

use crate::{error::Result, event::Event};

/// Writes events on a connection of the caller's, inside the caller's transaction.
///
/// Effect: one INSERT a call; the events exist when the caller's transaction commits and never when
/// it rolls back (I1). Guarantees: no lock shared with other writers, and no failure caused by the
/// relay's state (I13). Duplicates: enqueuing one event twice writes two rows with the same id,
/// which consumers drop by that id. Order: within a transaction as given. Cancellation: the
/// caller's transaction is then in doubt and must be rolled back, as with any statement. Errors:
/// `Configuration` outside a transaction, `SchemaMissing`, `Unauthorized`, or the driver's failure;
/// the caller's transaction can't be committed afterwards.
pub trait Enqueue<Conn: ?Sized>: Send + Sync {
    /// Writes one event.
    fn enqueue(&self, conn: &mut Conn, event: &Event) -> impl Future<Output = Result<()>> + Send;

    /// Writes several in one statement, in their order.
    fn enqueue_all(
        &self,
        conn: &mut Conn,
        events: &[Event],
    ) -> impl Future<Output = Result<()>> + Send;
}
