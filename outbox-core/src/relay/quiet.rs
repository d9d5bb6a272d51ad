//! Bounds log lines of a loop that fails again and again (I8).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::error::ErrorKind;

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

/// The same for each kind of failure by itself: one that goes on must not hide a new one.
#[derive(Debug, Default)]
pub(super) struct QuietByKind(BTreeMap<ErrorKind, Quiet>);

impl QuietByKind {
    /// As [`Quiet::line`], two lines a minute for each kind.
    pub(super) fn line(&mut self, kind: ErrorKind) -> Option<u64> {
        self.0.entry(kind).or_insert_with(Quiet::for_loop).line()
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
        let mut quiet = QuietByKind::default();
        let lines: usize = (0..100)
            .filter_map(|_| quiet.line(ErrorKind::Unavailable))
            .count();
        assert_eq!(lines, 2);
        assert_eq!(quiet.line(ErrorKind::SchemaMissing), Some(0));
    }
}
