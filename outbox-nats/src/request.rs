//! Messages that want an answer, and where the answers come in.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;
use outbox_core::Result;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{
        broadcast::{self, error::RecvError},
        mpsc,
    },
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::Link,
    error::{self, Denied, Refusal},
};

/// Where all answers on a connection come in, and go to their calls. One subscription for the life of
/// the connection: one for each call would be two more lines to the server.
pub(crate) struct Router {
    prefix: String,
    calls: Mutex<HashMap<u64, mpsc::UnboundedSender<(usize, Message)>>>,
    next_call: AtomicU64,
}

impl Router {
    /// Subscribes, and works until `ended`, or until the connection is gone.
    ///
    /// # Errors
    /// The connection is gone.
    pub(crate) async fn start(client: &Client, ended: CancellationToken) -> Result<Arc<Self>> {
        let prefix = client.new_inbox();
        let answers = client.subscribe(format!("{prefix}.*.*")).await;
        let answers = answers.map_err(|_| error::broken())?;
        let router = Arc::new(Self {
            prefix,
            calls: Mutex::default(),
            next_call: AtomicU64::new(0),
        });
        let routing = Arc::clone(&router).route(answers);
        tokio::spawn(ended.run_until_cancelled_owned(routing));
        Ok(router)
    }

    async fn route(self: Arc<Self>, mut answers: Subscriber) {
        while let Some(answer) = answers.next().await {
            let mut numbers = answer.subject.rsplit('.').map(|part| part.parse().ok());
            let (Some(Some(number)), Some(Some(call))) = (numbers.next(), numbers.next()) else {
                continue;
            };
            if let (Some(to), Ok(number)) = (self.calls().get(&call), usize::try_from(number)) {
                // A call that has just ended wants nothing more.
                let _ = to.send((number, answer));
            }
        }
        // Who waits learns that nothing more comes.
        self.calls().clear();
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, mpsc::UnboundedSender<(usize, Message)>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's own subjects for answers: what comes too late for one call can't be taken for an answer
/// to another.
pub(crate) struct Inbox {
    link: Link,
    call: u64,
    answers: mpsc::UnboundedReceiver<(usize, Message)>,
    denials: broadcast::Receiver<Denied>,
}

/// What happened next.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// An answer to the message of this number.
    Answer(usize, Message),
    Denied(Denied),
    /// The connection is gone; nothing more will come.
    Broken,
}

impl Inbox {
    pub(crate) fn open(link: &Link) -> Self {
        let router = &link.router;
        let call = router.next_call.fetch_add(1, Ordering::Relaxed);
        // As many at most as the call has messages under way (I8).
        let (to, answers) = mpsc::unbounded_channel();
        router.calls().insert(call, to);
        Self {
            call,
            answers,
            denials: link.denials.subscribe(),
            link: link.clone(),
        }
    }

    /// Hands the message to the connection, in the order of the calls.
    ///
    /// # Errors
    /// The connection is gone, and the message was not sent.
    pub(crate) async fn send(
        &self,
        number: usize,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<()> {
        let answer_to = format!("{}.{}.{number}", self.link.router.prefix, self.call);
        let client = &self.link.client;
        // Without headers it goes as a message of the older form.
        let sent = client.publish_with_reply_and_headers(subject, answer_to, headers, payload);
        sent.await.map_err(|_| error::broken())
    }

    /// The next that happens. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Arrival {
        loop {
            tokio::select! {
                biased;
                // Before all else: what was answered before the connection broke is answered.
                answer = self.answers.recv() => return match answer {
                    Some((number, answer)) => Arrival::Answer(number, answer),
                    None => Arrival::Broken,
                },
                () = self.link.deaf.cancelled() => return Arrival::Denied(Denied::Answers),
                denied = self.denials.recv() => match denied {
                    Ok(denied) => return Arrival::Denied(denied),
                    // Who has too many hears of the next, or of none in time.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Arrival::Broken,
                },
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.link.router.calls().remove(&self.call);
    }
}

/// What JetStream's own interface says.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    Is(T),
    Refused(Refusal),
    /// There is no JetStream.
    NoResponders,
    /// This user may not ask.
    NotPermitted,
}

/// Asks JetStream's own interface.
///
/// # Errors
/// No answer in time, of another form, a broken connection, or answers that are not permitted.
pub(crate) async fn ask<T: DeserializeOwned>(
    link: &Link,
    domain: Option<&str>,
    question: &str,
    body: String,
    limit: Duration,
    operation: &'static str,
) -> Result<Reply<T>> {
    let subject = match domain {
        Some(domain) => format!("$JS.{domain}.API.{question}"),
        None => format!("$JS.API.{question}"),
    };
    let asking = async {
        let mut inbox = Inbox::open(link);
        let headers = HeaderMap::new();
        inbox.send(0, subject.clone(), headers, body.into()).await?;
        loop {
            match inbox.next().await {
                Arrival::Answer(_, message) => return read(&message, operation),
                Arrival::Denied(Denied::Publish(denied)) if denied != subject => {}
                Arrival::Denied(Denied::Publish(_)) => return Ok(Reply::NotPermitted),
                Arrival::Denied(denied) => return Err(denied.error(operation)),
                Arrival::Broken => return Err(error::broken()),
            }
        }
    };
    timeout(limit, asking)
        .await
        .unwrap_or_else(|_| Err(error::timeout(operation)))
}

fn read<T: DeserializeOwned>(message: &Message, operation: &'static str) -> Result<Reply<T>> {
    #[derive(serde::Deserialize)]
    struct Failed {
        error: Refusal,
    }
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Ok(Reply::NoResponders);
    }
    if let Ok(Failed { error }) = serde_json::from_slice(&message.payload) {
        return Ok(Reply::Refused(error));
    }
    serde_json::from_slice(&message.payload)
        .map(Reply::Is)
        .map_err(|_| {
            let what = "JetStream's answer has an unknown form";
            outbox_core::Error::new(outbox_core::ErrorKind::Protocol, operation, what)
        })
}
