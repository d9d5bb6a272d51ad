//! Stores by configuration.

use std::sync::Arc;

use outbox_core::{Event, OutboxStore};

use crate::{
    config::{StoreConfig, StoreKind},
    exit::Failure,
};

/// Opens the store.
pub(crate) async fn open(config: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
    match config.kind {
        StoreKind::PostgresQueue => postgres::open(config).await,
    }
}

/// The SQL of all versions of the schema.
pub(crate) fn migrations(kind: StoreKind, schema: Option<&str>) -> Result<String, Failure> {
    match kind {
        StoreKind::PostgresQueue => postgres::migrations(schema),
    }
}

/// Writes events in one transaction.
pub(crate) async fn enqueue(config: StoreConfig, events: &[Event]) -> Result<(), Failure> {
    match config.kind {
        StoreKind::PostgresQueue => postgres::enqueue(config, events).await,
    }
}

#[cfg(not(feature = "postgres"))]
mod postgres {
    use super::{Arc, Event, Failure, OutboxStore, StoreConfig};

    fn left_out<T>() -> Result<T, Failure> {
        Err(Failure::usage(
            "configuration: this program was built without PostgreSQL — build it with the feature \
             postgres",
        ))
    }

    #[expect(clippy::unused_async, reason = "the form of the one that connects")]
    pub(super) async fn open(_: StoreConfig) -> Result<Arc<dyn OutboxStore>, Failure> {
        left_out()
    }

    pub(super) fn migrations(_: Option<&str>) -> Result<String, Failure> {
        left_out()
    }

    #[expect(clippy::unused_async, reason = "the form of the one that connects")]
    pub(super) async fn enqueue(_: StoreConfig, _: &[Event]) -> Result<(), Failure> {
        left_out()
    }
}
