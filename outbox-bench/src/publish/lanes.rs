//! Batches through a publisher, as a relay's lanes send them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use futures::future::join_all;
use outbox_core::{Publisher, StoredEvent};

use crate::brokers::Window;

/// Publishes all; each lane takes the next batch when its last one was answered.
pub(crate) async fn publish(
    publisher: &Arc<dyn Publisher>,
    events: &Arc<Vec<StoredEvent>>,
    window: Window,
) -> Result<Duration> {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let lane = |_| {
        let (publisher, events, next) =
            (Arc::clone(publisher), Arc::clone(events), Arc::clone(&next));
        tokio::spawn(async move {
            loop {
                let from = next.fetch_add(window.batch, Ordering::Relaxed);
                let to = (from + window.batch).min(events.len());
                if from >= to {
                    return Ok(());
                }
                for outcome in publisher.publish(&events[from..to]).await {
                    if !outcome.is_delivered() {
                        bail!("an event was not delivered: {outcome:?}");
                    }
                }
            }
        })
    };
    for lane in join_all((0..window.lanes).map(lane)).await {
        lane??;
    }
    Ok(started.elapsed())
}
