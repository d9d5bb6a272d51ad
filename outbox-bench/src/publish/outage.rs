//! The memory of a process whose broker hangs, and then is gone, while it goes on publishing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::future::join_all;
use outbox_core::{Outcome, Publisher, StoredEvent};
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::events;
use crate::{
    brokers::{Broker, Window},
    memory,
};

/// The deadline of a call, so short that there are many.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two calls, less than the breaker's shortest pause.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the memory is looked at.
const LOOK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);

/// What an outage cost.
#[derive(Serialize)]
pub(crate) struct Outage {
    broker: &'static str,
    state: &'static str,
    seconds: u64,
    calls: usize,
    /// After each lane's first call of the outage has failed.
    start_mib: f64,
    peak_mib: f64,
    end_mib: f64,
}

impl Outage {
    /// What stands above the rows of a table.
    pub(crate) fn head() -> String {
        let columns = ["calls", "start", "peak", "end", "MiB grown (bar < 16)"];
        let [calls, start, peak, end, grown] = columns;
        format!(
            "{:<24} {calls:>6} {start:>8} {peak:>8} {end:>8} {grown:>22}",
            "outage"
        )
    }

    /// A row: resident memory in MiB.
    pub(crate) fn row(&self) -> String {
        let name = format!("{}, {} {} s", self.broker, self.state, self.seconds);
        let (start, peak, end) = (self.start_mib, self.peak_mib, self.end_mib);
        let grown = end - start;
        format!(
            "{name:<24} {:>6} {start:>8.1} {peak:>8.1} {end:>8.1} {grown:>22.1}",
            self.calls
        )
    }
}

impl Outage {
    /// Publishes while the broker does not answer and looks at the memory.
    async fn run(
        &mut self,
        publisher: &Arc<dyn Publisher>,
        batch: &Arc<Vec<StoredEvent>>,
        window: Window,
    ) -> Result<()> {
        let calls = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let lane = |_| {
            let (publisher, batch) = (Arc::clone(publisher), Arc::clone(batch));
            tokio::spawn(go_on(publisher, batch, Arc::clone(&calls), stop.clone()))
        };
        let lanes: Vec<_> = (0..window.lanes).map(lane).collect();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(self.seconds) {
            sleep(LOOK).await;
            if calls.load(Ordering::Relaxed) >= window.lanes {
                let now = resident_mib()?;
                if self.start_mib == 0.0 {
                    self.start_mib = now;
                }
                self.peak_mib = now.max(self.peak_mib);
            }
        }
        stop.cancel();
        for lane in join_all(lanes).await {
            lane??;
        }
        self.calls = calls.load(Ordering::Relaxed);
        self.end_mib = resident_mib()?;
        ensure!(self.start_mib > 0.0, "no call ended during the outage");
        Ok(())
    }
}

/// Publishes the batch again and again, as a relay would; nothing of it can be delivered.
async fn go_on(
    publisher: Arc<dyn Publisher>,
    batch: Arc<Vec<StoredEvent>>,
    calls: Arc<AtomicUsize>,
    stop: CancellationToken,
) -> Result<()> {
    while !stop.is_cancelled() {
        let outcomes = publisher.publish(&batch).await;
        calls.fetch_add(1, Ordering::Relaxed);
        let delivered = outcomes.iter().any(Outcome::is_delivered);
        ensure!(!delivered, "an event was delivered without a broker");
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Pauses the broker and then stops it, each for so long.
pub(crate) async fn watch(
    broker: &mut dyn Broker,
    window: Window,
    duration: Duration,
) -> Result<[Outage; 2]> {
    broker.clear().await?;
    let publisher = broker.publisher(PUBLISH_TIMEOUT)?;
    let batch = Arc::new(events(broker.topic(), window.batch)?);
    recover(&*publisher, &batch).await?;
    let of = |state| Outage {
        broker: broker.name(),
        state,
        seconds: duration.as_secs(),
        calls: 0,
        start_mib: 0.0,
        peak_mib: 0.0,
        end_mib: 0.0,
    };
    let (mut paused, mut stopped) = (of("paused"), of("stopped"));
    broker.server().pause()?;
    let hung = paused.run(&publisher, &batch, window).await;
    broker.server().resume()?;
    hung?;
    recover(&*publisher, &batch).await?;
    broker.server().stop()?;
    stopped.run(&publisher, &batch, window).await?;
    broker.server().restart()?;
    recover(&*publisher, &batch).await?;
    publisher.close(Duration::from_secs(1)).await;
    Ok([paused, stopped])
}

/// Publishes until everything is delivered again.
async fn recover(publisher: &dyn Publisher, batch: &[StoredEvent]) -> Result<()> {
    let began = Instant::now();
    loop {
        let outcomes = publisher.publish(batch).await;
        let Some(other) = outcomes.iter().find(|outcome| !outcome.is_delivered()) else {
            return Ok(());
        };
        ensure!(began.elapsed() < PATIENCE, "it does not recover: {other:?}");
        sleep(PAUSE).await;
    }
}

/// What this process has in memory.
fn resident_mib() -> Result<f64> {
    let bytes = memory::of_process(std::process::id(), "VmRSS:")?;
    Ok(bytes as f64 / f64::from(1 << 20))
}
