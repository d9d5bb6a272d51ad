//! The verdicts of a batch as columns for one statement.

use std::time::Duration;

use outbox_core::{Error, ErrorKind, FailureNote, Result, Settlement, Verdict};

use crate::enqueue::micros;

/// Verdicts, sorted by what they cost: done ones need an id only.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) done: Vec<i64>,
    pub(crate) other: Others,
}

/// One array a column.
#[derive(Debug, Default)]
pub(crate) struct Others {
    pub(crate) ids: Vec<i64>,
    pub(crate) verdicts: Vec<&'static str>,
    pub(crate) after_us: Vec<Option<i64>>,
    pub(crate) reasons: Vec<Option<&'static str>>,
    pub(crate) kinds: Vec<Option<&'static str>>,
    pub(crate) texts: Vec<Option<String>>,
}

impl Verdicts {
    /// # Errors
    /// `Internal` on `Hold`: nothing is held back where no order is promised.
    pub(crate) fn new(settlements: &[Settlement]) -> Result<Self> {
        let mut all = Self::default();
        for settlement in settlements {
            let id = settlement.position.0;
            let other = &mut all.other;
            match &settlement.verdict {
                Verdict::Done => all.done.push(id),
                Verdict::Retry { after, note } => {
                    other.push(id, "retry", Some(*after), None, Some(note));
                }
                Verdict::Defer { after, note } => {
                    other.push(id, "defer", Some(*after), None, Some(note));
                }
                Verdict::Return => other.push(id, "return", None, None, None),
                Verdict::Dead { reason, note, .. } => {
                    other.push(id, "dead", None, Some(reason.as_str()), Some(note));
                }
                Verdict::Hold => {
                    return Err(Error::new(
                        ErrorKind::Internal,
                        "settle",
                        "an event can't be held in a store without order",
                    ));
                }
            }
        }
        Ok(all)
    }
}

impl Others {
    fn push(
        &mut self,
        id: i64,
        verdict: &'static str,
        after: Option<Duration>,
        reason: Option<&'static str>,
        note: Option<&FailureNote>,
    ) {
        self.ids.push(id);
        self.verdicts.push(verdict);
        self.after_us.push(after.map(micros));
        self.reasons.push(reason);
        self.kinds
            .push(note.and_then(|note| note.kind).map(ErrorKind::as_str));
        self.texts.push(note.map(|note| note.text.clone()));
    }
}
