//! The one place where Kafka's and librdkafka's error codes become the project's errors.

use outbox_core::{Error, ErrorKind, Outcome, Scope};
use rdkafka::types::RDKafkaErrorCode as Code;

/// The operation that errors of sending name.
pub(crate) const PUBLISH: &str = "publish to Kafka";
/// The operation that errors of asking for topics name.
pub(crate) const CONNECT: &str = "ask Kafka for topics";

/// What an error code says about the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landed {
    /// Not stored, and never will be as it is.
    Never,
    /// Not stored; another time it may be.
    No,
    /// Nobody knows.
    Maybe,
}

/// The table: code → kind, scope, whether the record may have landed.
///
/// librdkafka repeats by itself what is worth repeating within the call; what arrives here is the
/// end of it. A code that is not known may be a state of the server: destination scope, and the
/// record in doubt.
fn classify(code: Code) -> (ErrorKind, Scope, Landed) {
    use ErrorKind as K;
    use Landed::{Maybe, Never, No};
    use Scope::{Destination, Message, Topic};
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            (K::TooLarge, Message, Never)
        }
        Code::InvalidTopic => (K::InvalidTopic, Message, Never),
        // A record that the topic's settings do not allow: a compacted one without a key, a time
        // out of bounds. Settings change, so attempts are counted.
        Code::InvalidRecord
        | Code::InvalidDifferentRecord
        | Code::InvalidTimestamp
        | Code::InvalidMessage
        | Code::PolicyViolation
        | Code::BadMessage
        | Code::BadCompression => (K::Refused, Message, No),
        Code::UnsupportedCompressionType
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedVersion
        | Code::InvalidRequiredAcks
        | Code::InvalidConfig => (K::Configuration, Destination, No),
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicId => (K::TopicNotFound, Topic, No),
        Code::TopicAuthorizationFailed => (K::Unauthorized, Topic, No),
        Code::ClusterAuthorizationFailed | Code::TransactionalIdAuthorizationFailed => {
            (K::Unauthorized, Destination, No)
        }
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SSL => (K::Unauthenticated, Destination, Maybe),
        // Of one partition; the topic's other partitions go with it, other topics do not.
        Code::NotEnoughReplicas => (K::Unavailable, Topic, No),
        Code::NotEnoughReplicasAfterAppend
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::KafkaStorageError => (K::Unavailable, Topic, Maybe),
        Code::ThrottlingQuotaExceeded => (K::Throttled, Destination, No),
        Code::QueueFull => (K::OutOfSpace, Destination, No),
        Code::BrokerTransportFailure
        | Code::NetworkException
        | Code::BrokerDestroy
        | Code::DestroyBroker => (K::ConnectionLost, Destination, Maybe),
        Code::AllBrokersDown | Code::BrokerNotAvailable | Code::Resolve => {
            (K::Unavailable, Destination, Maybe)
        }
        // Also what is taken back at the end of a call: it may have been sent before.
        Code::MessageTimedOut
        | Code::RequestTimedOut
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::PurgeQueue
        | Code::PurgeInflight => (K::Timeout, Destination, Maybe),
        _ => (K::Protocol, Destination, Maybe),
    }
}

/// What the brokers or librdkafka said, in words.
fn error(operation: &'static str, code: Code) -> (Error, Landed) {
    let (kind, scope, landed) = classify(code);
    let error = Error::new(kind, operation, words(code)).scope(scope);
    (error.context("code", code_name(code)), landed)
}

/// The driver's name of the code, as `UnknownTopicOrPartition`.
fn code_name(code: Code) -> String {
    format!("{code:?}")
}

/// librdkafka's description is "Broker: Unknown topic or partition"; the driver puts its own name
/// of the code before.
fn words(code: Code) -> String {
    let text = code.to_string();
    match text.split_once(" (") {
        Some((_, description)) => description.trim_end_matches(')').to_owned(),
        None => text,
    }
}

/// The outcome of an event whose record got this answer.
pub(crate) fn outcome(code: Code) -> Outcome {
    let (error, landed) = error(PUBLISH, code);
    match landed {
        Landed::Never => Outcome::Rejected(error),
        Landed::No => Outcome::Failed(error),
        Landed::Maybe => Outcome::Unknown(error),
    }
}

/// What a topic's entry in the brokers' answer says. Nothing was sent.
pub(crate) fn topic(code: Code, topic: &str) -> Outcome {
    let (error, landed) = error(PUBLISH, code);
    // Where every topic is asked for by itself, a failure is not everybody's.
    let error = match error.failure_scope() {
        Scope::Destination if error.kind() == ErrorKind::Protocol => error.scope(Scope::Topic),
        _ => error,
    };
    let error = error.context("topic", topic);
    match landed {
        Landed::Never => Outcome::Rejected(error),
        Landed::No | Landed::Maybe => Outcome::Failed(error),
    }
}

/// Asking failed, so nothing was sent. `last` is what librdkafka complained about meanwhile, which
/// tells more than that no answer came.
pub(crate) fn asking(code: Code, last: Option<&(Code, String)>) -> Error {
    let of_last = last.map(|(code, text)| (classify(*code), text));
    let ((kind, _, _), text) = match of_last {
        Some((class, text)) => (class, text.clone()),
        None => (classify(code), words(code)),
    };
    let kind = match kind {
        // No connection was there that could be lost.
        ErrorKind::ConnectionLost | ErrorKind::Protocol => ErrorKind::Unavailable,
        kind => kind,
    };
    Error::new(kind, CONNECT, text).scope(Scope::Destination)
}

/// The producer ended itself: its state and the brokers' do not fit any more, or it may not be.
pub(crate) fn fatal(code: Code) -> Error {
    let (kind, scope, _) = classify(code);
    let kind = match kind {
        ErrorKind::Unauthorized | ErrorKind::Unauthenticated | ErrorKind::Configuration => kind,
        _ => ErrorKind::Unavailable,
    };
    let scope = scope.max(Scope::Destination);
    let what = format!("the producer ended itself: {}", words(code));
    Error::new(kind, PUBLISH, what)
        .scope(scope)
        .context("code", code_name(code))
}

/// No answer in time.
pub(crate) fn timeout(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "no answer in time")
}

/// The publisher is closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, PUBLISH, "the publisher is closed")
}

/// A contract of ours was broken.
pub(crate) fn internal(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, PUBLISH, what)
}

#[cfg(test)]
mod tests {
    use outbox_core::{Directive, classify as directive};

    use super::*;

    #[rustfmt::skip]
    const TABLE: [(Code, ErrorKind, Scope, Landed); 40] = [
        (Code::MessageSizeTooLarge, ErrorKind::TooLarge, Scope::Message, Landed::Never),
        (Code::MessageBatchTooLarge, ErrorKind::TooLarge, Scope::Message, Landed::Never),
        (Code::InvalidMessageSize, ErrorKind::TooLarge, Scope::Message, Landed::Never),
        (Code::InvalidTopic, ErrorKind::InvalidTopic, Scope::Message, Landed::Never),
        (Code::InvalidRecord, ErrorKind::Refused, Scope::Message, Landed::No),
        (Code::InvalidDifferentRecord, ErrorKind::Refused, Scope::Message, Landed::No),
        (Code::InvalidTimestamp, ErrorKind::Refused, Scope::Message, Landed::No),
        (Code::InvalidMessage, ErrorKind::Refused, Scope::Message, Landed::No),
        (Code::PolicyViolation, ErrorKind::Refused, Scope::Message, Landed::No),
        (Code::UnsupportedCompressionType, ErrorKind::Configuration, Scope::Destination, Landed::No),
        (Code::UnsupportedForMessageFormat, ErrorKind::Configuration, Scope::Destination, Landed::No),
        (Code::UnsupportedVersion, ErrorKind::Configuration, Scope::Destination, Landed::No),
        (Code::InvalidRequiredAcks, ErrorKind::Configuration, Scope::Destination, Landed::No),
        (Code::UnknownTopicOrPartition, ErrorKind::TopicNotFound, Scope::Topic, Landed::No),
        (Code::UnknownTopic, ErrorKind::TopicNotFound, Scope::Topic, Landed::No),
        (Code::UnknownPartition, ErrorKind::TopicNotFound, Scope::Topic, Landed::No),
        (Code::TopicAuthorizationFailed, ErrorKind::Unauthorized, Scope::Topic, Landed::No),
        (Code::ClusterAuthorizationFailed, ErrorKind::Unauthorized, Scope::Destination, Landed::No),
        (Code::Authentication, ErrorKind::Unauthenticated, Scope::Destination, Landed::Maybe),
        (Code::SaslAuthenticationFailed, ErrorKind::Unauthenticated, Scope::Destination, Landed::Maybe),
        (Code::SSL, ErrorKind::Unauthenticated, Scope::Destination, Landed::Maybe),
        (Code::NotEnoughReplicas, ErrorKind::Unavailable, Scope::Topic, Landed::No),
        (Code::NotEnoughReplicasAfterAppend, ErrorKind::Unavailable, Scope::Topic, Landed::Maybe),
        (Code::LeaderNotAvailable, ErrorKind::Unavailable, Scope::Topic, Landed::Maybe),
        (Code::NotLeaderForPartition, ErrorKind::Unavailable, Scope::Topic, Landed::Maybe),
        (Code::KafkaStorageError, ErrorKind::Unavailable, Scope::Topic, Landed::Maybe),
        (Code::ThrottlingQuotaExceeded, ErrorKind::Throttled, Scope::Destination, Landed::No),
        (Code::QueueFull, ErrorKind::OutOfSpace, Scope::Destination, Landed::No),
        (Code::BrokerTransportFailure, ErrorKind::ConnectionLost, Scope::Destination, Landed::Maybe),
        (Code::NetworkException, ErrorKind::ConnectionLost, Scope::Destination, Landed::Maybe),
        (Code::AllBrokersDown, ErrorKind::Unavailable, Scope::Destination, Landed::Maybe),
        (Code::Resolve, ErrorKind::Unavailable, Scope::Destination, Landed::Maybe),
        (Code::MessageTimedOut, ErrorKind::Timeout, Scope::Destination, Landed::Maybe),
        (Code::RequestTimedOut, ErrorKind::Timeout, Scope::Destination, Landed::Maybe),
        (Code::OperationTimedOut, ErrorKind::Timeout, Scope::Destination, Landed::Maybe),
        (Code::PurgeQueue, ErrorKind::Timeout, Scope::Destination, Landed::Maybe),
        (Code::PurgeInflight, ErrorKind::Timeout, Scope::Destination, Landed::Maybe),
        (Code::OutOfOrderSequenceNumber, ErrorKind::Protocol, Scope::Destination, Landed::Maybe),
        (Code::Fatal, ErrorKind::Protocol, Scope::Destination, Landed::Maybe),
        (Code::Unknown, ErrorKind::Protocol, Scope::Destination, Landed::Maybe),
    ];

    #[test]
    fn each_code_has_its_kind_and_scope_and_doubt() {
        for (code, kind, scope, landed) in TABLE {
            assert_eq!(classify(code), (kind, scope, landed), "{code:?}");
        }
    }

    #[test]
    fn what_no_waiting_can_mend_is_dead_at_once_and_only_that() {
        let of = |code| directive(&outcome(code));
        assert_eq!(of(Code::MessageSizeTooLarge), Directive::DeadLetter);
        assert_eq!(of(Code::InvalidRecord), Directive::Retry);
        assert_eq!(of(Code::UnknownTopicOrPartition), Directive::PauseTopic);
        assert_eq!(of(Code::NotEnoughReplicas), Directive::PauseTopic);
        assert_eq!(of(Code::AllBrokersDown), Directive::PauseDestination);
        assert_eq!(of(Code::Unknown), Directive::PauseDestination);
    }

    #[test]
    fn the_words_are_the_broker_s() {
        let outcome = outcome(Code::UnknownTopicOrPartition);
        let shown = outcome.error().unwrap().to_string();
        assert!(
            shown.contains("Broker: Unknown topic or partition"),
            "{shown}"
        );
        assert!(shown.contains("code=UnknownTopicOrPartition"), "{shown}");
        assert_eq!(shown.matches('(').count(), 1, "{shown}");
    }

    #[test]
    fn what_was_complained_about_tells_why_nobody_answers() {
        let refused = (
            Code::BrokerTransportFailure,
            "Connection refused".to_owned(),
        );
        let error = asking(Code::OperationTimedOut, Some(&refused));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("Connection refused"), "{error}");
        let password = (Code::Authentication, "Invalid credentials".to_owned());
        let error = asking(Code::BrokerTransportFailure, Some(&password));
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        let error = asking(Code::OperationTimedOut, None);
        assert_eq!(error.kind(), ErrorKind::Timeout);
        for error in [error, fatal(Code::OutOfOrderSequenceNumber)] {
            assert_eq!(error.failure_scope(), Scope::Destination, "{error}");
        }
        assert_eq!(
            fatal(Code::ClusterAuthorizationFailed).kind(),
            ErrorKind::Unauthorized
        );
    }

    #[test]
    fn a_topic_s_own_fault_is_no_one_else_s() {
        for code in [
            Code::UnknownTopicOrPartition,
            Code::Unknown,
            Code::LeaderNotAvailable,
        ] {
            let Outcome::Failed(error) = topic(code, "t") else {
                panic!("{code:?}");
            };
            assert_eq!(error.failure_scope(), Scope::Topic);
            assert!(error.to_string().contains("topic=t"), "{error}");
        }
        assert!(matches!(
            topic(Code::InvalidTopic, "t"),
            Outcome::Rejected(_)
        ));
    }
}
