//! Events per second of the publisher beside a bare pipeline of the same commands, on the server
//! whose URL is the first argument; the second is the number of events (200,000).
//!
//! `cargo run --release -p outbox-redis --example throughput redis://localhost:6379`

use std::time::Instant;

use outbox_core::{Event, Outcome, Position, Publisher, StoredEvent};
use outbox_redis::{RedisConfig, RedisPublisher};

const BATCH: usize = 500;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: throughput URL [EVENTS]")?;
    let count: usize = arguments.next().map_or(Ok(200_000), |text| text.parse())?;
    let events = (0..BATCH).map(event).collect::<Result<Vec<_>, Failure>>()?;
    let batches = count / BATCH;

    for round in 1..=3 {
        let bare = bare(&url, &events, batches, false).await?;
        let transactions = self::bare(&url, &events, batches, true).await?;
        let publisher = published(&url, &events, batches).await?;
        println!(
            "round {round}: bare pipeline {bare:.0}/s, bare MULTI/EXEC {transactions:.0}/s, \
             publisher {publisher:.0}/s ({:.2} of the latter)",
            publisher / transactions
        );
    }
    Ok(())
}

/// About 350 bytes: payload, a header, names.
fn event(number: usize) -> Result<StoredEvent, Failure> {
    let event = Event::new("throughput", "OrderPlaced")
        .aggregate("order", number.to_string())
        .trace_context(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            None,
        )
        .content_type("application/json")
        .bytes(vec![b'x'; 240])?;
    let now = time::OffsetDateTime::now_utc();
    Ok(StoredEvent::from_event(&event, Position(0), now))
}

async fn published(url: &str, events: &[StoredEvent], batches: usize) -> Result<f64, Failure> {
    let publisher = RedisPublisher::new(RedisConfig::new(url))?;
    publisher.check().await?;
    let start = Instant::now();
    for _ in 0..batches {
        let outcomes = publisher.publish(events).await;
        if let Some(outcome) = outcomes.iter().find(|outcome| !outcome.is_delivered()) {
            return Err(format!("{:?}", outcome.error()).into());
        }
        std::hint::black_box::<&[Outcome]>(&outcomes);
    }
    finish(url, events.len() * batches, start).await
}

/// The same fields by the driver alone, made anew for each batch as an application would.
async fn bare(
    url: &str,
    events: &[StoredEvent],
    batches: usize,
    transactional: bool,
) -> Result<f64, Failure> {
    let client = redis::Client::open(url)?;
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    let start = Instant::now();
    for _ in 0..batches {
        let mut pipeline = redis::pipe();
        if transactional {
            pipeline.atomic();
        }
        for event in events {
            let payload = event.payload.as_deref().unwrap_or_default();
            pipeline.cmd("XADD").arg(&event.topic).arg("*");
            pipeline.arg("payload").arg(payload);
            pipeline.arg("event-id").arg(event.id.to_string());
            pipeline.arg("event-type").arg(&event.event_type);
            pipeline.arg("event-version").arg(event.event_version);
            pipeline.arg("key").arg(&event.key);
            pipeline.arg("aggregate-type").arg(&event.aggregate_type);
            pipeline.arg("aggregate-id").arg(&event.aggregate_id);
            pipeline.arg("content-type").arg(&event.content_type);
            pipeline.arg("created-at").arg(event.created_at.to_string());
            pipeline
                .arg("headers")
                .arg(event.headers.to_json().to_string());
        }
        let ids: Vec<String> = pipeline.query_async(&mut connection).await?;
        std::hint::black_box(ids);
    }
    finish(url, events.len() * batches, start).await
}

async fn finish(url: &str, events: usize, start: Instant) -> Result<f64, Failure> {
    let elapsed = start.elapsed();
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let length: usize = redis::cmd("XLEN")
        .arg("throughput")
        .query_async(&mut connection)
        .await?;
    if length != events {
        return Err(format!("{length} entries of {events}").into());
    }
    redis::cmd("UNLINK")
        .arg("throughput")
        .exec_async(&mut connection)
        .await?;
    #[expect(clippy::cast_precision_loss, reason = "a rate for reading")]
    let rate = events as f64 / elapsed.as_secs_f64();
    Ok(rate)
}
