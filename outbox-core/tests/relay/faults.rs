//! Publishers and stores that misbehave.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{Capabilities, OrderClass, Outcome, Publisher, RelayConfig, Route, StoredEvent};
use tokio::time::sleep;

use crate::script::{commit, dead, one_lane, run_with};

/// Answers for fewer events than it was given.
struct Miscounting;

#[async_trait]
impl Publisher for Miscounting {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            ..Capabilities::default()
        }
    }
    async fn publish(&self, _events: &[StoredEvent]) -> Vec<Outcome> {
        Vec::new()
    }
}

/// Never answers.
struct Hanging;

#[async_trait]
impl Publisher for Hanging {
    async fn publish(&self, _events: &[StoredEvent]) -> Vec<Outcome> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_breaks_its_contract_pauses_its_route_and_loses_nothing() {
    let publishers: [(&str, Arc<dyn Publisher>); 2] = [
        ("0 outcomes for 1 events", Arc::new(Miscounting)),
        ("no answer within", Arc::new(Hanging)),
    ];
    for (reason, publisher) in publishers {
        let store = one_lane();
        commit(&store, &[("t", "k", "1")]);
        let config = RelayConfig {
            shutdown_grace: Duration::from_millis(100),
            ..RelayConfig::default()
        };
        let relay = run_with(&store, Route::new("r", publisher), config);
        sleep(Duration::from_secs(120)).await;
        let report = relay.health.report();
        assert!(
            report.routes["r"]
                .last_error
                .as_ref()
                .is_some_and(|error| error.contains(reason)),
            "{report:?}"
        );
        assert!(dead(&store).await.is_empty());
        relay.stop().await;
        let found = outbox_core::Inspect::inspect(&store, 10).await.unwrap();
        assert_eq!((found.pending.value, found.in_flight.value), (1, 0));
    }
}
