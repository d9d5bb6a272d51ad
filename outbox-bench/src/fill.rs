//! Fills the outbox with events of about 350 bytes.

use anyhow::Result;
use outbox_core::{Enqueue, Event};
use outbox_postgres::PgOutbox;
use sqlx::{Connection, PgConnection};

/// Events of one INSERT.
const CHUNK: usize = 1000;

/// The event number `n`: payload, names, id and headers together are about 350 bytes.
pub(crate) fn event(topic: &str, n: usize) -> Result<Event> {
    let order = n % 10_000;
    let payload = format!(
        "{{\"order_id\":{order},\"filler\":\"{}\"}}",
        "x".repeat(180)
    );
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Ok(Event::new(topic, "OrderCreated")
        .aggregate("order", format!("order-{order}"))
        .content_type("application/json")
        .trace_context(trace, None)
        .bytes(payload)?)
}

/// Empties the queue and writes `events` new ones, then brings the table's statistics up to date.
pub(crate) async fn fill(url: &str, topic: &str, events: usize) -> Result<()> {
    fill_topics(url, &[topic], events).await
}

/// The same with so many events for each of these topics, by turns.
pub(crate) async fn fill_topics(url: &str, topics: &[&str], events: usize) -> Result<()> {
    let events = events * topics.len();
    let mut conn = PgConnection::connect(url).await?;
    sqlx::raw_sql("TRUNCATE outbox.queue")
        .execute(&mut conn)
        .await?;
    let outbox = PgOutbox::new("outbox")?;
    let mut from = 0;
    while from < events {
        let to = (from + CHUNK).min(events);
        let chunk: Vec<Event> = (from..to)
            .map(|n| event(topics[n % topics.len()], n))
            .collect::<Result<_>>()?;
        let mut tx = conn.begin().await?;
        outbox.enqueue_all(&mut tx, &chunk).await?;
        tx.commit().await?;
        from = to;
    }
    sqlx::raw_sql("VACUUM ANALYZE outbox.queue")
        .execute(&mut conn)
        .await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut conn).await?;
    Ok(())
}
