//! A service that changes its database and tells others, in one transaction.

use outbox_core::{Enqueue, Event};
use outbox_postgres::PgOutbox;
use sqlx::{Connection, PgConnection};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut db = PgConnection::connect(&std::env::var("DATABASE_URL")?).await?;
    let outbox = PgOutbox::new("outbox")?;

    let mut tx = db.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES ('4711', 12)")
        .execute(&mut *tx)
        .await?;
    let event = Event::new("orders", "OrderPlaced")
        .aggregate("order", "4711")
        .json(&serde_json::json!({ "id": "4711", "total": 12 }))?;
    outbox.enqueue(&mut tx, &event).await?;
    tx.commit().await?; // both are there now, or neither
    Ok(())
}
