//! A whole relay in this process: PostgreSQL → Redis, acknowledged and settled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use outbox_core::{Inspect, Relay, RelayConfig, Route};
use outbox_postgres::PgQueue;
use outbox_redis::{RedisConfig, RedisPublisher};
use tokio_util::sync::CancellationToken;

/// How often the end is looked for: the figure's error on a run of seconds.
const LOOK: Duration = Duration::from_millis(5);

/// A relay on this store to this Redis.
pub(crate) fn relay(store: &Arc<PgQueue>, redis: &str, batch_events: usize) -> Result<Relay> {
    let publisher = Arc::new(RedisPublisher::new(RedisConfig::new(redis))?);
    let config = RelayConfig {
        batch_events_max: batch_events,
        ..RelayConfig::default()
    };
    let route = Route::new("default", publisher);
    let store = Arc::clone(store) as Arc<dyn outbox_core::OutboxStore>;
    Ok(Relay::builder(store).route(route).config(config).build()?)
}

/// Runs a relay until nothing is pending or in flight; checks that the stream has every event.
pub(crate) async fn drain(
    store: &Arc<PgQueue>,
    redis: &str,
    topic: &str,
    batch_events: usize,
    events: usize,
) -> Result<Duration> {
    let relay = relay(store, redis, batch_events)?;
    let elapsed = until_empty(relay, &**store).await?;
    let mut conn = redis::Client::open(redis)?
        .get_multiplexed_async_connection()
        .await?;
    let length: usize = redis::cmd("XLEN").arg(topic).query_async(&mut conn).await?;
    ensure!(
        length == events,
        "{length} entries in the stream for {events} events"
    );
    Ok(elapsed)
}

/// Runs the relay until nothing is pending or in flight in its store.
pub(crate) async fn until_empty(relay: Relay, store: &dyn Inspect) -> Result<Duration> {
    let stop = CancellationToken::new();
    let started = Instant::now();
    let running = tokio::spawn(relay.run(stop.clone()));
    let elapsed = loop {
        let found = store.inspect(1).await?;
        if found.pending.value + found.in_flight.value == 0 {
            break started.elapsed();
        }
        tokio::time::sleep(LOOK).await;
    };
    stop.cancel();
    running.await??;
    Ok(elapsed)
}
