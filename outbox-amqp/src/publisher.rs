//! The publisher.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use lapin::{Channel, ErrorKind as DriverKind, protocol::AMQPError};
use outbox_core::{
    Capabilities, Error, ErrorKind, OrderClass, Outcome, Publisher, Result, StoredEvent,
};
use tokio::{
    sync::RwLock,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    batch::Batch,
    check,
    config::AmqpConfig,
    connection::{Connector, Link},
    error::{self, Blame, PUBLISH, timeout as timed_out},
    flight::{Answer, Flight, Landing},
    wire::{self, Limits},
};

/// How often a call that waits looks whether the server has blocked it.
const BLOCKED_LOOK: Duration = Duration::from_millis(100);
/// How long a blocked call waits for the confirmation of what the server had read before.
const BLOCKED_PATIENCE: Duration = Duration::from_secs(1);
/// How long a server may take to answer a good-bye.
const GOOD_BYE: Duration = Duration::from_secs(1);

/// Publishes events to RabbitMQ. The crate's page tells mapping and guarantees.
///
/// Calls may run at the same time; they share one connection, which is made at the first call and
/// replaced by itself, and each has a channel of its own. Needs a tokio runtime with time and I/O.
pub struct AmqpPublisher {
    config: AmqpConfig,
    connector: Connector,
    /// Held for reading by each call, so that `close` can wait for all.
    calls: RwLock<()>,
    closed: CancellationToken,
}

/// How a round on one channel ended.
enum Round {
    Done,
    ChannelClosed,
}

impl AmqpPublisher {
    /// Checks the settings and reads `ca_file`. Nothing is sent: an unreachable server shows in
    /// `check` and `publish`.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub fn new(config: AmqpConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            connector: Connector::new(&config)?,
            config,
            calls: RwLock::new(()),
            closed: CancellationToken::new(),
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            body_bytes_max: self.config.message_bytes_max,
            frame_bytes_max: self.connector.frame_bytes_max(),
        }
    }

    /// Sends the batch, on a new channel when the server closed one.
    ///
    /// # Errors
    /// Why the rest was not sent; the events in flight are in doubt.
    async fn send_all(
        &self,
        batch: &mut Batch<'_>,
        flight: &mut Flight,
        used: &mut Option<Link>,
    ) -> Result<()> {
        let _call = self.calls.read().await;
        let link = self.connector.link().await?;
        *used = Some(link.clone());
        while batch.waiting().is_some() {
            if link.open.is_blocked() {
                return Err(error::blocked(PUBLISH));
            }
            let channel = link.open.channel().await;
            let channel = channel.map_err(|error| error::broken(&error))?;
            match self.round(batch, flight, &link, &channel).await? {
                Round::Done => link.open.give_back(channel),
                Round::ChannelClosed => {}
            }
        }
        Ok(())
    }

    /// Sends on this channel until nothing waits and nothing is in flight, or the server closes it.
    ///
    /// # Errors
    /// What forbids to send more.
    async fn round(
        &self,
        batch: &mut Batch<'_>,
        flight: &mut Flight,
        link: &Link,
        channel: &Channel,
    ) -> Result<Round> {
        let mut blocked_since = None;
        loop {
            self.send_more(batch, flight, link, channel).await;
            if flight.is_empty() {
                return Ok(Round::Done);
            }
            let landing = tokio::select! {
                biased;
                landing = flight.next() => landing,
                () = sleep(BLOCKED_LOOK) => None,
            };
            let Some(landing) = landing else {
                if !link.open.is_blocked() {
                    blocked_since = None;
                } else if blocked_since.get_or_insert_with(Instant::now).elapsed()
                    > BLOCKED_PATIENCE
                {
                    return Err(error::blocked(PUBLISH));
                }
                continue;
            };
            blocked_since = None;
            self.connector.touch(link.generation);
            if let Some((index, error)) = take(batch, link, landing) {
                return closed(batch, flight, link, index, error).await;
            }
            if flight.is_empty() {
                conclude(batch, link);
            }
        }
    }

    /// Hands over as much as may be in flight.
    async fn send_more(
        &self,
        batch: &mut Batch<'_>,
        flight: &mut Flight,
        link: &Link,
        channel: &Channel,
    ) {
        while let Some(index) = batch.waiting() {
            let event = batch.event(index);
            let bytes = wire::bytes_estimate(event);
            let alone = batch.goes_alone(index) || link.open.goes_alone(&event.topic);
            let has_room = flight.events() < self.config.in_flight_events_max
                && flight.bytes().saturating_add(bytes) <= self.config.in_flight_bytes_max
                && !alone
                && !flight.alone
                && !link.open.is_blocked();
            if !has_room && !flight.is_empty() {
                return;
            }
            match wire::encode(event, &self.config.encoding, self.limits()) {
                Ok(message) => {
                    // From here on it may land, whatever happens to this call.
                    batch.sent(index);
                    flight.alone = alone;
                    flight.start(index, channel, message, bytes).await;
                }
                Err(error) => batch.settle(index, Outcome::Rejected(error)),
            }
        }
    }

    /// What a call that is over says of the connection.
    fn leave(&self, batch: &Batch<'_>, used: Option<&Link>) {
        let Some(link) = used else { return };
        if !link.open.is_alive() {
            self.connector.discard(link.generation);
        } else if batch.is_open() && !link.open.is_blocked() {
            // A silent server, or a queue that confirms nothing: the next call finds out.
            self.connector.distrust(link.generation);
        }
    }
}

/// Takes note of an answer; gives the error that ended the channel.
fn take(batch: &mut Batch<'_>, link: &Link, landing: Landing) -> Option<(usize, lapin::Error)> {
    let index = landing.event;
    let (returned, is_ack) = match landing.answer {
        Answer::Confirmed { returned, is_ack } => (returned, is_ack),
        Answer::NotAsked => {
            let what = "the server was not asked for a confirmation";
            let error = Error::new(ErrorKind::Internal, PUBLISH, what);
            batch.settle(index, Outcome::Unknown(error));
            return None;
        }
        Answer::Unsent(error) => {
            batch.again(index, false);
            return Some((index, error));
        }
        Answer::Lost(error) => {
            batch.again(index, true);
            return Some((index, error));
        }
    };
    if let Some(returned) = returned
        && let Some(topic) = batch.returned(&returned.message_id, returned.error)
    {
        link.open.suspect(topic);
    }
    if is_ack {
        batch.confirmed(index);
    } else {
        link.open.suspect(&batch.event(index).topic);
        batch.refuse(index, Outcome::Failed(error::nack()), Blame::Topic);
    }
    None
}

fn conclude(batch: &mut Batch<'_>, link: &Link) {
    for topic in batch.conclude() {
        link.open.trust(topic);
    }
}

/// The channel ended while these were in flight. Who was alone is to blame; else all go again,
/// one by one.
///
/// # Errors
/// The whole connection ended.
async fn closed(
    batch: &mut Batch<'_>,
    flight: &mut Flight,
    link: &Link,
    first: usize,
    error: lapin::Error,
) -> Result<Round> {
    let was_alone = flight.is_empty();
    let (mut last, mut cause) = (first, error);
    while let Some(landing) = flight.next().await {
        if let Some((index, error)) = take(batch, link, landing) {
            last = last.max(index);
            if reply(&cause).is_none() {
                cause = error;
            }
        }
    }
    conclude(batch, link);
    let soft = reply(&cause).filter(|_| cause.is_amqp_soft_error() && link.open.is_alive());
    let Some(reply) = soft else {
        return Err(error::broken(&cause));
    };
    if was_alone {
        let (outcome, blame) = error::closed(reply);
        link.open.suspect(&batch.event(first).topic);
        batch.blame(first, outcome, blame);
    } else {
        link.open.trust_nothing();
        batch.find_culprit_up_to(last);
    }
    Ok(Round::ChannelClosed)
}

/// The server's own words, if it said any.
fn reply(error: &lapin::Error) -> Option<&AMQPError> {
    match error.kind() {
        DriverKind::ProtocolError(reply) => Some(reply),
        _ => None,
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    fn name(&self) -> &'static str {
        "amqp"
    }

    /// `message_bytes_max` is the largest payload, as the settings say.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            dedup_by_id: false,
            null_payload: false,
            message_bytes_max: Some(self.config.message_bytes_max),
        }
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        wire::validate(event, &self.config.encoding, self.limits())
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        if events.is_empty() {
            return Vec::new();
        }
        let mut batch = Batch::new(events);
        let mut flight = Flight::default();
        let mut used = None;
        let deadline = Instant::now() + self.config.publish_timeout;
        let ended = tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(closed_publisher()),
            ended = self.send_all(&mut batch, &mut flight, &mut used) => ended,
            () = sleep_until(deadline) => Err(timed_out(PUBLISH)),
        };
        let mut ended = ended.err();
        if let Some(link) = &used {
            // What has arrived by now counts, and a return among it.
            while let Some(landing) = flight.next_landed() {
                take(&mut batch, link, landing);
            }
            if ended.is_some() && link.open.is_blocked() {
                ended = Some(error::blocked(PUBLISH));
            }
        }
        self.leave(&batch, used.as_ref());
        batch.finish(ended)
    }

    async fn check(&self) -> Result<()> {
        check::check(&self.connector).await
    }

    async fn close(&self, grace: Duration) {
        // Whether the calls ended by themselves or not, they end now.
        let _ = timeout(grace, self.calls.write()).await;
        self.closed.cancel();
        self.connector.close(GOOD_BYE).await;
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn closed_publisher() -> Error {
    Error::new(ErrorKind::Unavailable, PUBLISH, "the publisher is closed")
}
