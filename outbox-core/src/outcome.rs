//! What became of one attempt to publish one event.

use crate::error::Error;

/// The broker's durable acknowledgement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Where the broker put it (an offset, sequence or entry id), when it says so.
    pub position: Option<String>,
    /// The broker recognised a copy by the event id and kept only the first.
    pub duplicate: bool,
}

/// What a publisher answers for each event of a batch.
#[derive(Debug)]
pub enum Outcome {
    /// Acknowledged durably (I3).
    Delivered(Receipt),
    /// It never will be accepted as it is.
    Rejected(Error),
    /// It did not land; trying again makes no copy.
    Failed(Error),
    /// It may have landed; trying again may make a copy with the same id and bytes (I4).
    Unknown(Error),
}

impl Outcome {
    /// Acknowledged, with nothing to tell about where.
    pub fn delivered() -> Self {
        Self::Delivered(Receipt::default())
    }
    /// Whether it was acknowledged.
    pub fn is_delivered(&self) -> bool {
        matches!(self, Self::Delivered(_))
    }
    /// The error of the three that are no success.
    pub fn error(&self) -> Option<&Error> {
        match self {
            Self::Delivered(_) => None,
            Self::Rejected(e) | Self::Failed(e) | Self::Unknown(e) => Some(e),
        }
    }
    /// The stable name, as used for metric labels.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Delivered(_) => "delivered",
            Self::Rejected(_) => "rejected",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}
