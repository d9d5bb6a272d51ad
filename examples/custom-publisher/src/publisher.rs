//! The whole of it.

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::future::join_all;
use outbox_core::{Binding, Encoding, Error, ErrorKind, Outcome, Publisher, Result, StoredEvent};
use redis::{AsyncTypedCommands as _, aio::ConnectionManager};
use serde_json::json;
use tokio::time::timeout;

/// Publishes to Redis lists: a topic is a list.
pub struct ListPublisher {
    /// Connects by itself, again too.
    pub redis: ConnectionManager,
    /// The longest that one call takes.
    pub deadline: Duration,
}

#[async_trait]
impl Publisher for ListPublisher {
    /// What can't be sent is a dead letter before the rest of its key passes it.
    fn validate(&self, event: &StoredEvent) -> Result<()> {
        message(event).map(drop)
    }

    /// One outcome for each event, in their order.
    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let push = async |event| {
            let pushed = timeout(self.deadline, self.push(event)).await;
            // It may have been stored or not: it is sent again.
            pushed.unwrap_or_else(|_| Outcome::Unknown(failed("no answer")))
        };
        join_all(events.iter().map(push)).await
    }

    /// Whether it could work; asked at the start and while the destination is paused.
    async fn check(&self) -> Result<()> {
        let pong = timeout(self.deadline, self.redis.clone().ping()).await;
        let pong = pong.map_err(|_| failed("no answer"))?;
        pong.map(drop)
            .map_err(|e| failed("no connection").source(e))
    }
}

impl ListPublisher {
    async fn push(&self, event: &StoredEvent) -> Outcome {
        let message = match message(event) {
            Ok(message) => message,
            Err(error) => return Outcome::Rejected(error),
        };
        match self.redis.clone().rpush(&event.topic, message).await {
            Ok(_) => Outcome::delivered(),
            // Answers of the server: nothing was stored. The first concerns this list alone.
            Err(e) if e.code() == Some("WRONGTYPE") => {
                Outcome::Failed(Error::new(ErrorKind::WrongTopicType, "push", "no list").source(e))
            }
            Err(e) if e.code().is_some() => Outcome::Failed(failed("refused").source(e)),
            Err(e) => Outcome::Unknown(failed("no connection").source(e)),
        }
    }
}

fn failed(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, "push", what)
}

/// The event as JSON.
fn message(event: &StoredEvent) -> Result<String> {
    let payload = event.payload.as_ref().map(|bytes| STANDARD.encode(bytes));
    let mut json =
        json!({ "key": event.key, "headers": event.headers.to_json(), "payload": payload });
    let put = |_, name: &str, value: &str| json[name] = value.into();
    Encoding::Plain.attributes(event, Binding::Kafka, put)?;
    Ok(json.to_string())
}
