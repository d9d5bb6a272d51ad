//! Why a subject gives no answer: a missing stream is the topic's fault, a missing JetStream
//! everybody's.

use std::time::Duration;

use outbox_core::{Error, ErrorKind, Outcome, Scope};
use serde::Deserialize;

use crate::{
    check::StreamInfo,
    config::NatsConfig,
    connection::Link,
    error::{self, PUBLISH},
    request::{Reply, ask},
};

/// After so long without any answer it is asked whether one can come.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// What JetStream says of the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// No stream takes it.
    NoStream,
    /// There is no JetStream to ask.
    NoJetStream,
    /// The stream acknowledges nothing, by its own setting.
    NeverAnswers,
    /// A stream takes it, and is silent.
    Silent,
    /// It doesn't answer this either, or this user may not ask.
    Unclear,
}

#[derive(Deserialize)]
struct Names {
    streams: Option<Vec<String>>,
}

/// Asks about the subject.
pub(crate) async fn look(link: &Link, config: &NatsConfig, topic: &str) -> Finding {
    let domain = config.domain.as_deref();
    let limit = config.connect_timeout;
    let subject = serde_json::json!({ "subject": topic }).to_string();
    let names = ask::<Names>(link, domain, "STREAM.NAMES", subject, limit, PUBLISH).await;
    let names = match names {
        Ok(Reply::Is(names)) => names.streams.unwrap_or_default(),
        Ok(Reply::NoResponders) => return Finding::NoJetStream,
        Ok(Reply::Refused(refusal)) => {
            let destination = refusal.error(PUBLISH).failure_scope() == Scope::Destination;
            return if destination {
                Finding::NoJetStream
            } else {
                Finding::Unclear
            };
        }
        Ok(Reply::NotPermitted) | Err(_) => return Finding::Unclear,
    };
    let Some(name) = names.first() else {
        return Finding::NoStream;
    };
    match StreamInfo::ask(link, config, name).await {
        Ok(Reply::Is(info)) if info.config.no_ack => Finding::NeverAnswers,
        _ => Finding::Silent,
    }
}

impl Finding {
    /// The fault of a subject to which nobody listens.
    pub(crate) fn of_no_responders(self, topic: &str) -> Error {
        match self {
            Self::NoJetStream => error::no_jetstream(PUBLISH),
            Self::Silent | Self::NeverAnswers => Error::new(
                ErrorKind::Unavailable,
                PUBLISH,
                "the stream of this subject does not answer: it has no leader, or is offline",
            )
            .scope(Scope::Topic)
            .context("topic", topic),
            Self::NoStream | Self::Unclear => error::no_stream(topic),
        }
    }

    /// What became of a message to which nothing came, though somebody listens; `None` while an
    /// answer may yet come.
    pub(crate) fn of_silence(self, topic: &str) -> Option<Outcome> {
        match self {
            Self::NoStream => Some(Outcome::Failed(error::no_stream(topic))),
            Self::NoJetStream => Some(Outcome::Failed(error::no_jetstream(PUBLISH))),
            Self::NeverAnswers => {
                let what = "the stream of this subject acknowledges nothing (no_ack)";
                let error = Error::new(ErrorKind::WrongTopicType, PUBLISH, what);
                Some(Outcome::Unknown(error.context("topic", topic)))
            }
            Self::Silent | Self::Unclear => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_stream_and_a_missing_jetstream_are_told_apart() {
        use Finding as F;
        let told = |finding: F| {
            let error = finding.of_no_responders("t");
            (error.kind(), error.failure_scope())
        };
        let missing = (ErrorKind::TopicNotFound, Scope::Topic);
        assert_eq!(told(F::NoStream), missing);
        assert_eq!(told(F::Unclear), missing);
        assert_eq!(
            told(F::NoJetStream),
            (ErrorKind::Unavailable, Scope::Destination)
        );
        assert_eq!(told(F::Silent), (ErrorKind::Unavailable, Scope::Topic));

        let told = |finding: F| {
            let outcome = finding.of_silence("t")?;
            let error = outcome.error()?;
            Some((outcome.as_str(), error.kind(), error.failure_scope()))
        };
        assert_eq!(told(F::NoStream), Some(("failed", missing.0, missing.1)));
        let never = Some(("unknown", ErrorKind::WrongTopicType, Scope::Topic));
        assert_eq!(told(F::NeverAnswers), never);
        assert_eq!(told(F::Silent), None);
        assert_eq!(told(F::Unclear), None);
    }
}
