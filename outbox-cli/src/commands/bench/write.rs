//! Writing the events as an application does: each in a transaction of its own.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::Event;
use tokio::{task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use crate::{exit::Failure, store::Writer};

/// The events of a run.
pub(super) struct Events {
    pub(super) ledger: Arc<Ledger>,
    pub(super) topic: String,
    /// Of this run alone: by it what became of its events is found.
    pub(super) event_type: String,
    pub(super) keys: u32,
    pub(super) payload: Vec<u8>,
}

impl Events {
    /// The event of this number.
    pub(super) fn event(&self, number: u32) -> Result<Event, Failure> {
        let event = Event::new(&*self.topic, &*self.event_type)
            .id(self.ledger.id(number))
            .key(format!("bench-{}", number % self.keys))
            .content_type("application/octet-stream")
            .bytes(self.payload.clone());
        event.map_err(|invalid| Failure::input(format!("bench: {invalid}")))
    }
}

/// Where they are written, until told to stop.
pub(super) struct Target {
    pub(super) events: Events,
    pub(super) writer: Arc<dyn Writer>,
    pub(super) stop: CancellationToken,
}

impl Target {
    async fn write(&self, number: u32) -> Result<(), Failure> {
        let event = self.events.event(number)?;
        let began = Instant::now();
        self.writer.enqueue(&[event]).await?;
        self.events.ledger.committed(number, began);
        Ok(())
    }
}

/// Starts this many writers, who share the numbers until all are written, one fails, or they are told
/// to stop. With a rate, in events a second, each event has its time, and one that is late is written
/// at once.
pub(super) fn start(
    target: &Arc<Target>,
    numbers: Range<u32>,
    writers: u32,
    rate: Option<f64>,
) -> JoinSet<Result<(), Failure>> {
    let next = Arc::new(AtomicU32::new(numbers.start));
    let began = time::Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let (target, next, numbers) = (Arc::clone(target), Arc::clone(&next), numbers.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if !numbers.contains(&number) {
                    return Ok(());
                }
                let due = rate.map_or(began, |rate| {
                    began + Duration::from_secs_f64(f64::from(number - numbers.start) / rate)
                });
                tokio::select! { biased;
                    () = target.stop.cancelled() => return Ok(()),
                    () = time::sleep_until(due) => target.write(number).await?,
                }
            }
        });
    }
    tasks
}
