//! Whether the publisher can work: reachable, signed in, not blocked.

use outbox_core::Result;

use crate::{connection::Connector, error};

/// Asks the server; sends no message. Which exchanges are there and may be written shows when one
/// is published to.
pub(crate) async fn check(connector: &Connector) -> Result<()> {
    let link = connector.link().await?;
    if link.open.is_blocked() {
        return Err(error::blocked("check RabbitMQ"));
    }
    connector.probe(&link).await
}
