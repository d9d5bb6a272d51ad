//! The publisher.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use outbox_core::{
    Capabilities, Encoding, Error, ErrorKind, OrderClass, Outcome, Publisher, Result, Scope,
    StoredEvent,
};
use reqwest::{
    Response,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use tokio::{
    sync::RwLock,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, Answer},
    config::{HttpConfig, Target},
    connect::Connector,
    failure::{self, PUBLISH},
    request,
    signature::Signer,
    suspect::Suspect,
};

/// A body is read so far: a connection is used again only when its answer was read to the end.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// And for so long: what matters of an answer, its status, is known by then.
const BODY_TIME_MAX: Duration = Duration::from_secs(2);

/// Publishes each event by a POST of its own. `outbox-cli/docs.md` tells mapping and guarantees.
pub(super) struct HttpPublisher {
    connector: Connector,
    target: Target,
    encoding: Encoding,
    signer: Option<Signer>,
    publish_timeout: Duration,
    requests_in_flight_max: usize,
    /// How many answers came, of any status.
    answers: AtomicU64,
    suspect: Suspect,
    /// Held for reading by each call, so that `close` can wait for all.
    calls: RwLock<()>,
    closed: CancellationToken,
}

impl HttpPublisher {
    /// Checks the settings and reads the certificates. Nothing is sent.
    ///
    /// # Errors
    /// `Configuration`, naming the setting.
    pub(super) fn new(config: &HttpConfig) -> Result<Self> {
        config.validate()?;
        let mut target = config.target()?;
        let signer = config.secret.as_ref().map(Signer::new).transpose()?;
        let secret = config
            .secret
            .as_ref()
            .map(|secret| secret.expose().to_owned());
        target.secrets.extend(secret);
        Ok(Self {
            connector: Connector::new(config, &target.url)?,
            target,
            encoding: config.encoding.clone(),
            signer,
            publish_timeout: config.publish_timeout,
            requests_in_flight_max: config.requests_in_flight_max,
            answers: AtomicU64::new(0),
            suspect: Suspect::default(),
            calls: RwLock::new(()),
            closed: CancellationToken::new(),
        })
    }

    /// One event, unless a destination that failed meanwhile makes it useless to try.
    async fn publish_one(
        &self,
        event: &StoredEvent,
        deadline: Instant,
        failed: &OnceLock<Error>,
    ) -> Outcome {
        let headers = match request::headers(event, &self.encoding) {
            Ok(headers) => headers,
            Err(error) => return Outcome::Rejected(error),
        };
        if let Some(error) = failed.get() {
            return Outcome::Failed(error.copy());
        }
        if self.closed.is_cancelled() {
            return Outcome::Failed(closed());
        }
        if Instant::now() >= deadline {
            return Outcome::Failed(failure::timeout(PUBLISH));
        }
        let answers = self.answers.load(Ordering::Relaxed);
        let outcome = tokio::select! {
            biased;
            outcome = self.send(event, headers, deadline) => outcome,
            () = self.closed.cancelled() => return Outcome::Unknown(closed()),
            () = sleep_until(deadline) => Outcome::Unknown(failure::timeout(PUBLISH)),
        };
        let answered_others = self.answers.load(Ordering::Relaxed) != answers;
        let outcome = self.suspect.judge(event.id, outcome, answered_others);
        if let Some(error) = outcome.error()
            && error.failure_scope() == Scope::Destination
        {
            // The first reason counts for all that wait.
            let _ = failed.set(error.copy());
        }
        outcome
    }

    async fn send(&self, event: &StoredEvent, headers: HeaderMap, deadline: Instant) -> Outcome {
        let body = event.payload.clone().unwrap_or_default();
        let headers = match self.signed(event, headers, &body) {
            Ok(headers) => headers,
            Err(error) => return Outcome::Rejected(error),
        };
        let request = self.connector.client.post(self.target.url.clone());
        match request.headers(headers).body(body).send().await {
            Ok(response) => {
                self.answers.fetch_add(1, Ordering::Relaxed);
                self.read(event, response, deadline).await.outcome()
            }
            Err(error) => failure::of_request(&error),
        }
    }

    /// Adds authorization and signature.
    fn signed(
        &self,
        event: &StoredEvent,
        mut headers: HeaderMap,
        body: &[u8],
    ) -> Result<HeaderMap> {
        if let Some(authorization) = &self.target.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(signer) = &self.signer {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let timestamp = now.unwrap_or_default().as_secs().to_string();
            let id = event.id.to_string();
            let signature = signer.sign(&id, &timestamp, body);
            for (name, value) in [
                ("webhook-id", id),
                ("webhook-timestamp", timestamp),
                ("webhook-signature", signature),
            ] {
                let value = HeaderValue::try_from(value).map_err(|_| {
                    Error::new(ErrorKind::Internal, PUBLISH, "a signature is no header")
                })?;
                headers.insert(name, value);
            }
        }
        Ok(headers)
    }

    /// Takes the status, which is the answer, and of the body what is needed; that may fail.
    async fn read(&self, event: &StoredEvent, mut response: Response, deadline: Instant) -> Answer {
        let (status, headers) = (response.status(), response.headers());
        let retry_after = answer::retry_after(headers, SystemTime::now());
        let mut body = Vec::new();
        let reading = async {
            while let Ok(Some(chunk)) = response.chunk().await {
                let room = BODY_BYTES_MAX - body.len();
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if body.len() == BODY_BYTES_MAX {
                    break;
                }
            }
        };
        // Whatever was read by then is enough.
        let _ = timeout_at(deadline.min(Instant::now() + BODY_TIME_MAX), reading).await;
        let payload = event.payload.as_deref().unwrap_or_default();
        let excerpt = if status.is_success() {
            String::new()
        } else {
            answer::excerpt(&body, &self.target.secrets, payload)
        };
        Answer {
            status,
            retry_after,
            excerpt,
        }
    }
}

#[async_trait]
impl Publisher for HttpPublisher {
    fn name(&self) -> &'static str {
        "http"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::None,
            ..Capabilities::default()
        }
    }

    fn validate(&self, event: &StoredEvent) -> Result<()> {
        request::headers(event, &self.encoding).map(drop)
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let deadline = Instant::now() + self.publish_timeout;
        let _call = self.calls.read().await;
        let failed = OnceLock::new();
        let mut outcomes: Vec<_> = std::iter::repeat_with(|| None).take(events.len()).collect();
        let one = |index: usize| {
            let (event, failed) = (&events[index], &failed);
            async move { (index, self.publish_one(event, deadline, failed).await) }
        };
        let mut answers = stream::iter(0..events.len())
            .map(one)
            .buffer_unordered(self.requests_in_flight_max);
        while let Some((index, outcome)) = answers.next().await {
            outcomes[index] = Some(outcome);
        }
        let missing = || Error::new(ErrorKind::Internal, PUBLISH, "an event has no outcome");
        let outcomes = outcomes.into_iter();
        outcomes
            .map(|outcome| outcome.unwrap_or_else(|| Outcome::Unknown(missing())))
            .collect()
    }

    async fn check(&self) -> Result<()> {
        self.connector.check().await
    }

    async fn close(&self, grace: Duration) {
        // Whether the calls ended by themselves or not, they end now.
        let _ = timeout(grace, self.calls.write()).await;
        self.closed.cancel();
    }
}

impl fmt::Debug for HttpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The path may be a secret as well.
        f.debug_struct("HttpPublisher")
            .field("host", &self.target.url.host_str())
            .finish_non_exhaustive()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, PUBLISH, "the publisher is closed")
}
