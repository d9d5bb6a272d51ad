//! The publisher.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use outbox_core::{
    Capabilities, Error, ErrorKind, OrderClass, Outcome, Publisher, Receipt, Result, Scope,
    StoredEvent,
};
use redis::Cmd;
use tokio::{
    sync::RwLock,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    check,
    chunk::Chunk,
    config::RedisConfig,
    connection::{Connector, Link},
    error::{PUBLISH, broken, timeout as timed_out},
    reply::{self, Report, Verdict},
    trim::TrimWatch,
    wire,
};

/// Publishes events to Redis Streams. The crate's page tells mapping and guarantees.
///
/// Calls may run at the same time; they share one connection, which is made at the first call and
/// replaced by itself. Needs a tokio runtime with time and I/O.
pub struct RedisPublisher {
    config: RedisConfig,
    connector: Arc<Connector>,
    trimming: TrimWatch,
    /// Held for reading by each call, so that `close` can wait for all.
    calls: RwLock<()>,
    closed: CancellationToken,
    /// Ends what watches beside the calls.
    _closes: DropGuard,
}

impl RedisPublisher {
    /// Checks the settings and reads `ca_file`. Nothing is sent: an unreachable server shows in
    /// `check` and `publish`.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub fn new(config: RedisConfig) -> Result<Self> {
        config.validate()?;
        let closed = CancellationToken::new();
        Ok(Self {
            connector: Arc::new(Connector::new(&config)?),
            config,
            trimming: TrimWatch::default(),
            calls: RwLock::new(()),
            _closes: closed.clone().drop_guard(),
            closed,
        })
    }

    /// Sends the batch chunk by chunk, the next only when the last was answered.
    ///
    /// # Errors
    /// Why the rest was not sent; the events in flight are in doubt.
    async fn send_all(
        &self,
        events: &[StoredEvent],
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<()> {
        let _call = self.calls.read().await;
        let mut link = self.connector.link().await?;
        progress.generation = Some(link.generation);
        let config = &self.config;
        let field_bytes_max = self.connector.field_bytes_max();
        let mut events = events.iter().enumerate().peekable();
        while events.peek().is_some() {
            let mut chunk = Chunk::new(config.transactional);
            while let Some((index, event)) = events.next_if(|(_, event)| {
                let bytes = wire::bytes_estimate(event);
                chunk.has_room(bytes, config.pipeline_events_max, config.pipeline_bytes_max)
            }) {
                match wire::encode(
                    event,
                    &config.encoding,
                    config.stream_entries_max,
                    field_bytes_max,
                ) {
                    Ok(command) => chunk.push(index, command, wire::bytes_estimate(event)),
                    Err(error) => progress.settle(index, Outcome::Rejected(error)),
                }
            }
            // A second round takes what was dropped for the sake of a refused neighbour.
            while !chunk.events().is_empty() {
                chunk = self.send(chunk, &mut link, deadline, progress).await?;
            }
        }
        Ok(())
    }

    /// Sends one chunk and settles its events; returns those that may go again at once, which are
    /// fewer.
    ///
    /// # Errors
    /// What forbids to send more; the open events of the chunk are in flight or did not land.
    async fn send(
        &self,
        mut chunk: Chunk,
        link: &mut Link,
        deadline: Instant,
        progress: &mut Progress,
    ) -> Result<Chunk> {
        let wait = self
            .config
            .replicas_min
            .map(|replicas| wait(replicas, deadline));
        let waits = wait.is_some();
        let chunk_end = chunk.events().last().map(|last| last + 1);
        let pipeline = chunk.finish(wait);
        let answers = pipeline.len();
        // From here on the events may land, whatever happens to this call.
        progress.in_flight = chunk_end;
        let sent = link.connection.send_packed_commands(pipeline, 0, answers);
        let replies = sent.await.map_err(|error| broken(&error))?;
        let events = chunk.events();
        let report = reply::read(replies, events.len(), self.config.transactional, waits)?;
        progress.in_flight = None;
        self.connector.touch();
        self.settle(events, report, progress)?;
        let again = chunk.only(|index| progress.is_open(index));
        if again.events().len() == events.len() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                PUBLISH,
                "the server dropped the transaction without a reason",
            ));
        }
        Ok(again)
    }

    /// Writes what a report says; dropped events stay open.
    ///
    /// # Errors
    /// What forbids to send more.
    fn settle(&self, events: &[usize], report: Report, progress: &mut Progress) -> Result<()> {
        // Redis ends the transaction when it refuses EXEC; not every proxy before it does.
        progress.spoilt |= report.transaction.is_some();
        let mut stop = report.transaction.map(|refusal| refusal.error);
        let unconfirmed = match (self.config.replicas_min, report.replicas) {
            (Some(wanted), Some(got)) if got < wanted => Some(too_few_replicas(wanted, got)),
            _ => None,
        };
        for (index, verdict) in events.iter().zip(report.verdicts) {
            match (verdict, &unconfirmed) {
                (Verdict::Stored(_), Some(error)) => {
                    progress.settle(*index, Outcome::Unknown(error.copy()));
                }
                (Verdict::Stored(id), None) => {
                    let receipt = Receipt {
                        position: Some(id),
                        duplicate: false,
                    };
                    progress.settle(*index, Outcome::Delivered(receipt));
                }
                (Verdict::Refused(refusal), _) => {
                    progress.spoilt |= refusal.reconnect;
                    if refusal.error.failure_scope() == Scope::Destination {
                        stop.get_or_insert_with(|| refusal.error.copy());
                    }
                    progress.settle(*index, refusal.into_outcome());
                }
                (Verdict::Dropped, _) => {}
            }
        }
        stop.or(unconfirmed).map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Publisher for RedisPublisher {
    fn name(&self) -> &'static str {
        "redis"
    }

    /// `message_bytes_max` is the largest payload. It is the default of Redis until the first
    /// connection, and what the server says from then on, unless the settings fix it.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: false,
            null_payload: false,
            message_bytes_max: Some(self.connector.field_bytes_max()),
        }
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        wire::validate(
            event,
            &self.config.encoding,
            self.connector.field_bytes_max(),
        )
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let mut progress = Progress::new(events.len());
        if events.is_empty() {
            return Vec::new();
        }
        if self.config.stream_entries_max.is_some() {
            self.trimming.note(events, &self.connector, &self.closed);
        }
        let deadline = Instant::now() + self.config.publish_timeout;
        let ended = tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(closed()),
            ended = self.send_all(events, deadline, &mut progress) => ended,
            () = sleep_until(deadline) => Err(timed_out(PUBLISH)),
        };
        if let Some(generation) = progress.generation
            && (progress.spoilt || progress.in_flight.is_some())
        {
            self.connector.discard(generation);
        }
        progress.finish(ended)
    }

    async fn check(&self) -> Result<()> {
        check::check(&self.connector, &self.config).await
    }

    async fn close(&self, grace: Duration) {
        // Whether the calls ended by themselves or not, they end now.
        let _ = timeout(grace, self.calls.write()).await;
        self.closed.cancel();
        self.connector.close();
    }
}

impl fmt::Debug for RedisPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// How far a call has come: kept outside of the work, so that it survives the work's end by the
/// deadline.
struct Progress {
    outcomes: Vec<Option<Outcome>>,
    /// The connection in use.
    generation: Option<u64>,
    /// Where the chunk ends that was handed to the connection and is not answered: open events
    /// before may have landed, those behind it were not sent.
    in_flight: Option<usize>,
    /// The connection must not be used again.
    spoilt: bool,
}

impl Progress {
    fn new(events: usize) -> Self {
        Self {
            outcomes: std::iter::repeat_with(|| None).take(events).collect(),
            generation: None,
            in_flight: None,
            spoilt: false,
        }
    }

    fn settle(&mut self, index: usize, outcome: Outcome) {
        debug_assert!(self.is_open(index), "one outcome per event");
        self.outcomes[index] = Some(outcome);
    }

    fn is_open(&self, index: usize) -> bool {
        self.outcomes[index].is_none()
    }

    /// The outcomes, with what the end of the call means for the open events.
    fn finish(self, ended: Result<()>) -> Vec<Outcome> {
        let in_flight = self.in_flight.unwrap_or(0);
        let ended = ended
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Internal, PUBLISH, "an event has no outcome"));
        let outcomes = self.outcomes.into_iter().enumerate();
        outcomes
            .map(|(index, outcome)| {
                outcome.unwrap_or_else(|| {
                    if index < in_flight {
                        Outcome::Unknown(ended.copy())
                    } else {
                        Outcome::Failed(ended.copy())
                    }
                })
            })
            .collect()
    }
}

/// Waits for replicas for a part of the time that is left, so that the answer arrives before the
/// deadline.
fn wait(replicas: u32, deadline: Instant) -> Cmd {
    let left = deadline.saturating_duration_since(Instant::now());
    // Zero would mean to wait for ever.
    let patience_ms = u64::try_from(left.as_millis() * 3 / 4)
        .unwrap_or(u64::MAX)
        .max(1);
    let mut wait = redis::cmd("WAIT");
    wait.arg(replicas).arg(patience_ms);
    wait
}

fn too_few_replicas(wanted: u32, got: u32) -> Error {
    let what = "stored, but too few replicas confirmed in time";
    Error::new(ErrorKind::Unavailable, PUBLISH, what)
        .context("wanted", wanted)
        .context("confirmed", got)
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, PUBLISH, "the publisher is closed")
}
