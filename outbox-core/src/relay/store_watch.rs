//! Whether the store of a relay fails, from its first check on: routes share the store, and its
//! outage is told once.

use tracing::{info, warn};

use super::{health::Health, outage::Outage};
use crate::{directive::remedy, error::Error, metric};

pub(super) struct StoreWatch {
    /// The store's name.
    store: &'static str,
    health: Health,
    outage: Outage,
}

impl StoreWatch {
    pub(super) fn new(store: &'static str, health: Health) -> Self {
        Self {
            store,
            health,
            outage: Outage::default(),
        }
    }

    /// A call succeeded.
    pub(super) fn answered(&self) {
        let Some(ended) = self.outage.ended() else {
            return;
        };
        self.health.store(None);
        if let Some(suppressed) = ended.line {
            info!(
                store = self.store,
                failures = ended.failures,
                down_ms = ended.down_ms,
                suppressed,
                "store answers again"
            );
        }
    }

    /// A call failed; it is tried again. `route` is the one that made it, if one did.
    pub(super) fn failed(&self, operation: &'static str, route: Option<&str>, error: &Error) {
        let kind = error.kind();
        self.health.store(Some(error));
        ::metrics::counter!(metric::STORE_FAILURES, "store" => self.store, "operation" => operation, "kind" => kind.as_str())
            .increment(1);
        if let Some(suppressed) = self.outage.failed(error) {
            warn!(route, %error, suppressed, remedy = remedy(kind), "store failed");
        }
    }
}
