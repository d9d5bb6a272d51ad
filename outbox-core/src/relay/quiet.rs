//! Bounds log lines of a loop that fails again and again (I8).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};

/// Lets a few lines through per window and counts the others.
#[derive(Debug)]
pub(super) struct Quiet {
    lines_max: u32,
    window: Duration,
    opened: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Quiet {
    /// At most `lines_max` lines per `window`.
    pub(super) fn new(lines_max: u32, window: Duration) -> Self {
        Self {
            lines_max,
            window,
            opened: None,
            lines: 0,
            suppressed: 0,
        }
    }

    /// For a loop's own failures: two lines a minute.
    pub(super) fn for_loop() -> Self {
        Self::new(2, Duration::from_secs(60))
    }

    /// Whether to write a line now, and how many were left out since the last one.
    pub(super) fn line(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.opened.is_none_or(|opened| now >= opened + self.window) {
            self.opened = Some(now);
            self.lines = 0;
        }
        if self.lines < self.lines_max {
            self.lines += 1;
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

/// Codes that are told apart at the most; any further one counts as its kind alone (I8).
const CODES_MAX: usize = 16;

/// The same for each cause by itself, a kind of failure with the server's code: one that goes on
/// must not hide a new one, and a server that ends sessions and then admits none is two of a kind.
#[derive(Debug, Default)]
pub(super) struct QuietByCause(BTreeMap<(ErrorKind, Option<String>), Quiet>);

impl QuietByCause {
    /// As [`Quiet::line`], two lines a minute for each cause.
    pub(super) fn line(&mut self, error: &Error) -> Option<u64> {
        let mut cause = (error.kind(), error.code().map(ToOwned::to_owned));
        if cause.1.is_some() && self.0.len() >= CODES_MAX && !self.0.contains_key(&cause) {
            cause.1 = None;
        }
        self.0.entry(cause).or_insert_with(Quiet::for_loop).line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i8_two_lines_a_minute_and_the_rest_counted() {
        let mut quiet = Quiet::for_loop();
        let lines: Vec<_> = (0..1000).map(|_| quiet.line()).collect();
        assert_eq!(lines.iter().flatten().count(), 2);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(quiet.line(), Some(998));
        assert_eq!(quiet.line(), Some(0));
    }
    #[tokio::test(start_paused = true)]
    async fn i8_a_failure_that_goes_on_does_not_hide_a_new_one() {
        let mut quiet = QuietByCause::default();
        let error = |kind| Error::new(kind, "claim", "no");
        let of = |code: u32| error(ErrorKind::Unavailable).context("code", code);
        let lines: usize = (0..100).filter_map(|_| quiet.line(&of(1))).count();
        assert_eq!(lines, 2);
        assert_eq!(quiet.line(&error(ErrorKind::SchemaMissing)), Some(0));
        assert_eq!(quiet.line(&of(2)), Some(0), "another code");
        let lines: usize = (0..1000).filter_map(|code| quiet.line(&of(code))).count();
        assert!(lines <= 2 * CODES_MAX, "{lines}");
    }
}
