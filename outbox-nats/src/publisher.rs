//! The publisher.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{
    Capabilities, Error, ErrorKind, OrderClass, Outcome, Publisher, Result, Scope, StoredEvent,
};
use tokio::{
    sync::RwLock,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    answer::Answer,
    check::{self, Streams},
    config::NatsConfig,
    connection::{Connector, Link},
    error::{Denied, PUBLISH, broken, timeout as timed_out},
    progress::Progress,
    request::{Arrival, Inbox},
    restate::Restated,
    silence::{self, Finding, SILENCE},
    wire,
};

/// Topics of a call about which it is asked why they give no answer.
const QUESTIONS_MAX: usize = 16;

/// Publishes events to NATS JetStream. The crate's page tells mapping and guarantees.
///
/// Calls may run at the same time; they share one connection, which is made at the first call and
/// replaced by itself. Needs a tokio runtime with time and I/O.
pub struct NatsPublisher {
    config: NatsConfig,
    connector: Arc<Connector>,
    restated: Restated,
    streams: Streams,
    /// Held for reading by each call, so that `close` can wait for all.
    calls: RwLock<()>,
    closed: CancellationToken,
    /// Ends what works beside the calls.
    _closes: DropGuard,
}

impl NatsPublisher {
    /// Checks the settings and reads the files that they name. Nothing is sent: an unreachable
    /// server shows in `check` and `publish`.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub fn new(config: NatsConfig) -> Result<Self> {
        config.validate()?;
        let closed = CancellationToken::new();
        Ok(Self {
            connector: Arc::new(Connector::new(&config)?),
            config,
            restated: Restated::default(),
            streams: Streams::default(),
            calls: RwLock::new(()),
            _closes: closed.clone().drop_guard(),
            closed,
        })
    }

    /// Sends the batch through the window and takes the answers.
    ///
    /// # Errors
    /// Why the rest was not sent; the events in flight are in doubt.
    async fn send_all(&self, events: &[StoredEvent], progress: &mut Progress) -> Result<()> {
        let _call = self.calls.read().await;
        let link = self.connector.link().await?;
        progress.generation = Some(link.generation);
        let inbox = Inbox::open(&link);
        let mut call = Call {
            publisher: self,
            events,
            progress,
            link,
            inbox,
            next: 0,
            faults: HashMap::new(),
            unheard: Vec::new(),
            asked: BTreeSet::new(),
            stop: None,
        };
        call.run().await
    }
}

/// One call at work.
struct Call<'a> {
    publisher: &'a NatsPublisher,
    events: &'a [StoredEvent],
    progress: &'a mut Progress,
    link: Link,
    inbox: Inbox,
    /// The first event that was not looked at.
    next: usize,
    /// Topics whose further events are not sent.
    faults: HashMap<&'a str, Error>,
    /// Events to whose topic nobody listens.
    unheard: Vec<usize>,
    /// Topics about which it was asked.
    asked: BTreeSet<&'a str>,
    /// Why nothing more is sent at all.
    stop: Option<Error>,
}

impl<'a> Call<'a> {
    async fn run(&mut self) -> Result<()> {
        loop {
            self.fill().await?;
            if self.progress.nothing_in_flight() {
                break;
            }
            match timeout(SILENCE, self.inbox.next()).await {
                Ok(Arrival::Answer(index, message)) if self.progress.is_in_flight(index) => {
                    self.answered(index, Answer::read(&message));
                }
                // A second answer: of somebody else who listens to the topic.
                Ok(Arrival::Answer(..)) => {}
                Ok(Arrival::Denied(denied)) => self.denied(&denied)?,
                Ok(Arrival::Broken) => return Err(broken()),
                Err(_) => self.ask_for_the_silent().await,
            }
        }
        self.explain_the_unheard().await;
        self.stop.take().map_or(Ok(()), Err)
    }

    /// Sends what the window has room for.
    async fn fill(&mut self) -> Result<()> {
        let config = &self.publisher.config;
        let bytes_max = self.publisher.connector.message_bytes_max();
        while self.stop.is_none() && self.next < self.events.len() {
            let (index, event) = (self.next, &self.events[self.next]);
            if let Some(fault) = self.faults.get(event.topic.as_str()) {
                // What was not sent did not land, whatever became of the first.
                self.progress.settle(index, Outcome::Failed(fault.copy()));
                self.next += 1;
                continue;
            }
            let bytes = wire::bytes_estimate(event);
            let (events_max, window) = (config.in_flight_events_max, config.in_flight_bytes_max);
            if !self.progress.has_room(bytes, events_max, window) {
                break;
            }
            self.next += 1;
            let id = self.publisher.restated.message_id(event);
            let message = match wire::encode(event, &config.encoding, &id, bytes_max) {
                Ok(message) => message,
                Err(error) => {
                    self.progress.settle(index, Outcome::Rejected(error));
                    continue;
                }
            };
            self.progress.sent(index, bytes);
            let sent =
                self.inbox
                    .send(index, event.topic.clone(), message.headers, message.payload);
            if let Err(error) = sent.await {
                self.progress.did_not_land(index);
                return Err(error);
            }
        }
        Ok(())
    }

    fn answered(&mut self, index: usize, answer: Answer) {
        let topic = self.events[index].topic.as_str();
        match answer {
            Answer::Stored { stream, receipt } => {
                self.progress.settle(index, Outcome::Delivered(receipt));
                let publisher = self.publisher;
                publisher.streams.note(
                    &stream,
                    &publisher.connector,
                    &publisher.config,
                    &publisher.closed,
                );
            }
            Answer::Refused(refusal) => self.failed(index, refusal.into_outcome()),
            Answer::NoResponders => {
                self.progress.did_not_land(index);
                self.unheard.push(index);
                let fault = || Finding::Unclear.of_no_responders(topic);
                self.faults.entry(topic).or_insert_with(fault);
            }
            // The stream's own answer may yet come.
            Answer::Foreign => {}
        }
    }

    /// Settles an event that failed, and holds back what would fail for the same reason.
    fn failed(&mut self, index: usize, outcome: Outcome) {
        if let Some(error) = outcome.error() {
            match error.failure_scope() {
                Scope::Message => {}
                Scope::Topic => {
                    let topic = self.events[index].topic.as_str();
                    self.faults.entry(topic).or_insert_with(|| error.copy());
                }
                Scope::Destination => {
                    self.stop.get_or_insert_with(|| error.copy());
                }
            }
        }
        self.progress.settle(index, outcome);
    }

    /// The server dropped all messages to a subject, and does not say how many.
    fn denied(&mut self, denied: &Denied) -> Result<()> {
        let error = denied.error(PUBLISH);
        let Denied::Publish(subject) = denied else {
            return Err(error);
        };
        for index in self.in_flight_to(subject) {
            self.failed(index, Outcome::Failed(error.copy()));
        }
        Ok(())
    }

    fn in_flight_to(&self, topic: &str) -> Vec<usize> {
        let to = |index: &usize| self.events[*index].topic == topic;
        self.progress.in_flight().filter(to).collect()
    }

    /// Somebody who is no stream may listen to a topic: then nothing ever comes back.
    async fn ask_for_the_silent(&mut self) {
        let topics: Vec<&'a str> = self
            .progress
            .in_flight()
            .map(|index| self.events[index].topic.as_str())
            .collect();
        for topic in topics {
            if self.asked.len() >= QUESTIONS_MAX || !self.asked.insert(topic) {
                continue;
            }
            let finding = silence::look(&self.link, &self.publisher.config, topic).await;
            for index in self.in_flight_to(topic) {
                if let Some(outcome) = finding.of_silence(topic) {
                    self.failed(index, outcome);
                }
            }
        }
    }

    /// Gives the events to whose topic nobody listens their outcome.
    async fn explain_the_unheard(&mut self) {
        let mut findings: HashMap<&str, Finding> = HashMap::new();
        for index in std::mem::take(&mut self.unheard) {
            let topic = self.events[index].topic.as_str();
            let finding = match findings.get(topic) {
                Some(finding) => *finding,
                None if findings.len() >= QUESTIONS_MAX => Finding::Unclear,
                None => {
                    let finding = silence::look(&self.link, &self.publisher.config, topic).await;
                    findings.insert(topic, finding);
                    finding
                }
            };
            self.failed(index, Outcome::Failed(finding.of_no_responders(topic)));
        }
    }
}

#[async_trait]
impl Publisher for NatsPublisher {
    fn name(&self) -> &'static str {
        "nats"
    }

    /// `message_bytes_max` counts headers and payload. It is the default of NATS until the first
    /// connection, and what the server says from then on, unless the settings give less.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: true,
            null_payload: false,
            message_bytes_max: Some(self.connector.message_bytes_max()),
        }
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        wire::validate(
            event,
            &self.config.encoding,
            self.connector.message_bytes_max(),
        )
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        if events.is_empty() {
            return Vec::new();
        }
        let mut progress = Progress::new(events.len());
        let deadline = Instant::now() + self.config.publish_timeout;
        let ended = tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(closed()),
            ended = self.send_all(events, &mut progress) => ended,
            () = sleep_until(deadline) => Err(timed_out(PUBLISH)),
        };
        // What was not answered may be stuck in the connection, before what is sent next.
        if let Some(generation) = progress.generation
            && !progress.nothing_in_flight()
        {
            self.connector.discard(generation);
        }
        let outcomes = progress.finish(ended);
        self.restated.note(events, &outcomes);
        outcomes
    }

    async fn check(&self) -> Result<()> {
        check::check(&self.connector, &self.config, &self.streams).await
    }

    async fn close(&self, grace: Duration) {
        // Whether the calls ended by themselves or not, they end now.
        let _ = timeout(grace, self.calls.write()).await;
        self.closed.cancel();
        self.connector.close();
    }
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, PUBLISH, "the publisher is closed")
}
