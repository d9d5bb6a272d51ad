//! The service of the demo: orders, each with its event in the same transaction.

use outbox_core::{Enqueue as _, Event};
use outbox_sqlite::SqliteOutbox;
use serde::{Deserialize, Serialize};
use sqlx::{
    ConnectOptions as _, Connection as _, Row as _, Sqlite, SqliteConnection, Transaction,
    sqlite::SqliteConnectOptions,
};

use crate::exit::Failure;

/// The topic of its events.
pub(super) const TOPIC: &str = "orders";

/// An order, as it stands in the table and in the event's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order<'a> {
    pub(super) id: i64,
    pub(super) customer: &'a str,
    pub(super) total: i64,
}

/// How many rows there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) orders: i64,
    pub(super) events: i64,
}

/// A connection of the service's own, beside the relay's.
pub(super) struct Shop {
    connection: SqliteConnection,
    outbox: SqliteOutbox,
}

impl Shop {
    /// Opens the file and makes the table of orders.
    pub(super) async fn open(file: &str) -> Result<Self, Failure> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .disable_statement_logging();
        let mut connection = options.connect().await.map_err(failed)?;
        sqlx::query(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total INTEGER NOT NULL)",
        )
        .execute(&mut connection)
        .await
        .map_err(failed)?;
        Ok(Self {
            connection,
            outbox: SqliteOutbox::new(),
        })
    }

    /// Writes these orders and their events in one transaction.
    pub(super) async fn write(&mut self, orders: &[Order<'_>]) -> Result<(), Failure> {
        let tx = self.write_uncommitted(orders).await?;
        tx.commit().await.map_err(failed)
    }

    /// Writes an order and its event, and then takes both back.
    pub(super) async fn write_and_roll_back(&mut self, order: Order<'_>) -> Result<(), Failure> {
        let tx = self.write_uncommitted(&[order]).await?;
        tx.rollback().await.map_err(failed)
    }

    async fn write_uncommitted(
        &mut self,
        orders: &[Order<'_>],
    ) -> Result<Transaction<'_, Sqlite>, Failure> {
        let mut tx = self
            .connection
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(failed)?;
        for order in orders {
            sqlx::query("INSERT INTO orders (id, customer, total) VALUES (?1, ?2, ?3)")
                .bind(order.id)
                .bind(order.customer)
                .bind(order.total)
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            let event = Event::new(TOPIC, "OrderPlaced")
                .aggregate("order", order.id.to_string())
                .key(order.customer)
                .json(order)
                .map_err(|error| Failure::failed(format!("demo: {error}")))?;
            self.outbox.enqueue(&mut *tx, &event).await?;
        }
        Ok(tx)
    }

    /// Counts the rows of both tables.
    pub(super) async fn counts(&mut self) -> Result<Counts, Failure> {
        let row = sqlx::query(
            "SELECT (SELECT count(*) FROM orders) AS orders, (SELECT count(*) FROM outbox_queue) AS events",
        )
        .fetch_one(&mut self.connection)
        .await
        .map_err(failed)?;
        Ok(Counts {
            orders: row.try_get("orders").map_err(failed)?,
            events: row.try_get("events").map_err(failed)?,
        })
    }

    /// Number and customer of every committed order, oldest first.
    pub(super) async fn committed(&mut self) -> Result<Vec<(i64, String)>, Failure> {
        sqlx::query_as("SELECT id, customer FROM orders ORDER BY id")
            .fetch_all(&mut self.connection)
            .await
            .map_err(failed)
    }

    /// Ends the connection.
    pub(super) async fn close(self) -> Result<(), Failure> {
        self.connection.close().await.map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form of map_err")]
fn failed(error: sqlx::Error) -> Failure {
    Failure::failed(format!("demo: use its SQLite file: {error}"))
}
