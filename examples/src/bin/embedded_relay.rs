//! The relay inside a service: from PostgreSQL to Redis Streams until Ctrl-C.

use std::{env::var, sync::Arc};

use outbox_core::{Relay, Route, Store};
use outbox_postgres::{PgConfig, PgQueue};
use outbox_redis::{RedisConfig, RedisPublisher};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = PgQueue::connect(PgConfig::new(var("DATABASE_URL")?)).await?;
    store.migrate().await?;
    let publisher = RedisPublisher::new(RedisConfig::new(var("REDIS_URL")?))?;
    let relay = Relay::builder(Arc::new(store))
        .route(Route::new("default", Arc::new(publisher)))
        .build()?;

    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        on_signal.cancel();
    });
    relay.run(stop).await?; // drains, then returns
    Ok(())
}
