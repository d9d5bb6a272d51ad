//! Whether the publisher can work: reachable and signed in.

use outbox_core::Result;

use crate::cluster::Cluster;

/// Asks by a new connection, since an open one tells nothing about the next; sends nothing. What
/// topics may be written shows when they are.
pub(crate) async fn check(cluster: &Cluster) -> Result<()> {
    let checked = cluster.probe().await;
    if checked.is_err() {
        cluster.forget_all();
    }
    checked
}
