//! The messages that wait for their confirmation on one channel.

use std::{collections::VecDeque, future::Future, pin::Pin, task::Poll, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use lapin::{Channel, Confirmation, Error as DriverError, options::BasicPublishOptions};
use outbox_core::Error;
use tokio::{runtime::Handle, time::timeout};

use crate::{error, wire::Message};

/// How long what a call left in flight is waited for before its channel is closed.
const LINGER: Duration = Duration::from_secs(60);

/// What became of one message.
pub(crate) struct Landing {
    /// The place of its event in the batch.
    pub(crate) event: usize,
    bytes: usize,
    pub(crate) answer: Answer,
}

pub(crate) enum Answer {
    /// It was not handed to the network whole, so the server can't have it.
    Unsent(DriverError),
    /// The server answered: taken or not. A returned message comes with any confirmation.
    Confirmed {
        is_ack: bool,
        returned: Option<Box<Returned>>,
    },
    /// The channel has no confirmations, which would be a loss.
    NotAsked,
    /// No answer will come.
    Lost(DriverError),
}

/// A message that no queue took.
pub(crate) struct Returned {
    pub(crate) message_id: String,
    pub(crate) error: Error,
}

impl From<Confirmation> for Answer {
    fn from(confirmation: Confirmation) -> Self {
        let is_ack = match &confirmation {
            Confirmation::Ack(_) => true,
            Confirmation::Nack(_) => false,
            Confirmation::NotRequested => return Self::NotAsked,
        };
        let returned = confirmation.take_message().map(|message| {
            let id = message.properties.message_id().as_ref();
            Box::new(Returned {
                message_id: id.map(ToString::to_string).unwrap_or_default(),
                error: error::returned(message.reply_code, message.reply_text.as_str()),
            })
        });
        Self::Confirmed { is_ack, returned }
    }
}

type Sending = Pin<Box<dyn Future<Output = Landing> + Send>>;

/// Messages in flight.
///
/// Left behind (the call was cancelled or is over its deadline) they are waited for in the
/// background: closing their channel would overtake those that the driver has not written yet, and
/// the server ends the whole connection for a message on a closed channel.
#[derive(Default)]
pub(crate) struct Flight {
    sending: FuturesUnordered<Sending>,
    landed: VecDeque<Landing>,
    bytes: usize,
    /// The one message in flight must stay the only one.
    pub(crate) alone: bool,
}

impl Flight {
    pub(crate) fn is_empty(&self) -> bool {
        self.sending.is_empty() && self.landed.is_empty()
    }

    pub(crate) fn events(&self) -> usize {
        self.sending.len() + self.landed.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Hands a message to the driver; those of one channel arrive in the order of these calls.
    pub(crate) async fn start(
        &mut self,
        event: usize,
        channel: &Channel,
        message: Message,
        bytes: usize,
    ) {
        let channel = channel.clone();
        let options = BasicPublishOptions {
            mandatory: true,
            immediate: false,
        };
        let mut sending: Sending = Box::pin(async move {
            let sent = channel.basic_publish(
                message.exchange,
                message.routing_key,
                options,
                &message.body,
                message.properties,
            );
            let answer = match sent.await {
                Err(error) => Answer::Unsent(error),
                Ok(confirm) => match confirm.await {
                    Ok(confirmation) => confirmation.into(),
                    Err(error) => Answer::Lost(error),
                },
            };
            Landing {
                event,
                bytes,
                answer,
            }
        });
        self.bytes += bytes;
        // The driver takes the message when it is polled first; a set polls in no promised order.
        match futures::poll!(&mut sending) {
            Poll::Ready(landing) => self.landed.push_back(landing),
            Poll::Pending => self.sending.push(sending),
        }
    }

    /// The next one that landed; `None` when nothing is in flight.
    pub(crate) async fn next(&mut self) -> Option<Landing> {
        let landing = match self.landed.pop_front() {
            Some(landing) => landing,
            None => self.sending.next().await?,
        };
        self.bytes -= landing.bytes;
        if self.is_empty() {
            self.alone = false;
        }
        Some(landing)
    }

    /// The next one that has landed by now.
    pub(crate) fn next_landed(&mut self) -> Option<Landing> {
        self.next().now_or_never().flatten()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.sending.is_empty() {
            return;
        }
        let mut sending = std::mem::take(&mut self.sending);
        // Without a runtime the driver's work is over too.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(timeout(LINGER, async move {
                while sending.next().await.is_some() {}
            }));
        }
    }
}
