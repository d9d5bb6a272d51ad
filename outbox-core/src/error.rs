//! One error for the whole workspace: what kind, how wide, doing what, on what.

use std::{borrow::Cow, fmt, time::Duration};

/// `Result` with the workspace's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How wide a failure is. It decides who waits: one event, one topic or the whole route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// This event only; the attempt counts.
    Message,
    /// Every event of this topic; no attempt is burnt.
    Topic,
    /// Everything behind this publisher or store; no attempt is burnt.
    Destination,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $scope:ident;)*) => {
        /// What went wrong, in the terms of this project. Backends map their driver's codes to it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorKind { $($(#[$doc])* $name,)* }

        impl ErrorKind {
            /// Every kind, for tests of totality and for lists.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name, as written into stores, metrics and filters.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// How wide such a failure is unless the backend knows better.
            pub const fn usual_scope(self) -> Scope {
                match self { $(Self::$name => Scope::$scope,)* }
            }
        }
    };
}

kinds! {
    /// The event is malformed: headers of an unknown form, a text that is no UTF-8.
    InvalidEvent = "invalid_event", Message;
    /// Over a size limit of ours or the broker's.
    TooLarge = "too_large", Message;
    /// The destination can't take a topic of this name.
    InvalidTopic = "invalid_topic", Message;
    /// The server refused this one message for a reason of its own.
    Refused = "refused", Message;
    /// The publisher panicked on it.
    Panic = "panic", Message;
    /// No such topic, stream, exchange or queue.
    TopicNotFound = "topic_not_found", Topic;
    /// Taken by the server, but nothing is bound that would keep it.
    Unroutable = "unroutable", Topic;
    /// The topic exists with a type that can't be appended to.
    WrongTopicType = "wrong_topic_type", Topic;
    /// Not permitted to do this.
    Unauthorized = "unauthorized", Topic;
    /// User, password, token or certificate not accepted.
    Unauthenticated = "unauthenticated", Destination;
    /// Not reachable, starting up or shutting down.
    Unavailable = "unavailable", Destination;
    /// The connection broke while an answer was awaited.
    ConnectionLost = "connection_lost", Destination;
    /// No answer in time.
    Timeout = "timeout", Destination;
    /// Told to come later.
    Throttled = "throttled", Destination;
    /// Out of memory, disk or quota.
    OutOfSpace = "out_of_space", Destination;
    /// A replica or standby that takes no writes.
    ReadOnly = "read_only", Destination;
    /// Deadlock or serialisation failure; the same call may succeed at once.
    Conflict = "conflict", Destination;
    /// Another worker has it now; whatever this one still writes is void (I6).
    LeaseLost = "lease_lost", Destination;
    /// The tables are not there.
    SchemaMissing = "schema_missing", Destination;
    /// The tables are older than this program.
    SchemaOlder = "schema_older", Destination;
    /// The tables are newer than this program.
    SchemaNewer = "schema_newer", Destination;
    /// A setting is wrong.
    Configuration = "configuration", Destination;
    /// The other side broke the protocol, or an answer has an unknown form.
    Protocol = "protocol", Destination;
    /// A contract of ours was broken: a defect.
    Internal = "internal", Destination;
}

impl ErrorKind {
    /// Reads the stable name back.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }

    /// Whether waiting alone can't mend it: a program that meets it at start stops and says so.
    pub const fn needs_operator(self) -> bool {
        matches!(
            self,
            Self::Unauthenticated
                | Self::Unauthorized
                | Self::SchemaMissing
                | Self::SchemaOlder
                | Self::SchemaNewer
                | Self::Configuration
        )
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The workspace's error. `Display` is one line without secrets; `Debug` shows all of it.
///
/// Whoever builds one from a driver's error must leave out connection strings, passwords and
/// payloads (I15): [`message`](Self::new), [`context`](Self::context) and the source are printed.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    scope: Scope,
    operation: &'static str,
    message: Cow<'static, str>,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    retry_after: Option<Duration>,
}

impl Error {
    /// An error of this kind, with the kind's usual scope, met in this operation.
    pub fn new(
        kind: ErrorKind,
        operation: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Inner {
            kind,
            scope: kind.usual_scope(),
            operation,
            message: message.into(),
            context: Vec::new(),
            source: None,
            retry_after: None,
        }))
    }

    /// Another scope than the kind's usual one.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.0.scope = scope;
        self
    }
    /// Adds a named value: what it was about. Never a secret.
    #[must_use]
    pub fn context(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name, value.to_string()));
        self
    }
    /// The driver's error below; it is printed by `Debug` and by reporters that walk the chain.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }
    /// The server said when to come again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// How wide it is.
    pub fn failure_scope(&self) -> Scope {
        self.0.scope
    }
    /// The server's own code for it, where the driver gave one.
    pub(crate) fn code(&self) -> Option<&str> {
        let mut context = self.0.context.iter();
        context.find_map(|(name, value)| (*name == "code").then_some(value.as_str()))
    }
    /// What was being done.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }
    /// When the server wants to be asked again, if it said so.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_after
    }
    /// The same failure for another event of the batch (the source stays behind).
    #[must_use]
    pub fn copy(&self) -> Self {
        let inner = &self.0;
        Self(Box::new(Inner {
            kind: inner.kind,
            scope: inner.scope,
            operation: inner.operation,
            message: inner.message.clone(),
            context: inner.context.clone(),
            source: None,
            retry_after: inner.retry_after,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        write!(
            f,
            "{}: {}: {}",
            inner.operation,
            inner.kind,
            OneLine(&inner.message)
        )?;
        for (index, (name, value)) in inner.context.iter().enumerate() {
            let opening = if index == 0 { " (" } else { ", " };
            write!(f, "{opening}{name}={}", OneLine(value))?;
        }
        if !inner.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// Text of other programs, kept to one line so that it can't forge log lines.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self
            .0
            .split(char::is_control)
            .filter(|p| !p.is_empty())
            .enumerate()
        {
            if index > 0 {
                f.write_str(" ")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        f.debug_struct("Error")
            .field("kind", &inner.kind)
            .field("scope", &inner.scope)
            .field("operation", &inner.operation)
            .field("message", &inner.message)
            .field("context", &inner.context)
            .field("retry_after", &inner.retry_after)
            .field("source", &inner.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

impl From<crate::limits::InvalidEvent> for Error {
    fn from(invalid: crate::limits::InvalidEvent) -> Self {
        let kind = match invalid {
            crate::limits::InvalidEvent::TooLong { .. } => ErrorKind::TooLarge,
            _ => ErrorKind::InvalidEvent,
        };
        Self::new(kind, "build event", invalid.to_string()).source(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line() {
        let error = Error::new(ErrorKind::Refused, "publish", "ERR no\r\nsecond line")
            .context("topic", "a\nb")
            .source(std::io::Error::other("hidden"));
        assert_eq!(
            error.to_string(),
            "publish: refused: ERR no second line (topic=a b)"
        );
        assert!(format!("{error:?}").contains("hidden"));
    }

    #[test]
    fn names_of_kinds_read_back_and_are_unique() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::parse(kind.as_str()), Some(*kind));
        }
        assert_eq!(ErrorKind::parse("nonsense"), None);
    }
}
