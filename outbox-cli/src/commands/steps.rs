//! Long work in short steps: a bar on a terminal, and an orderly end by a signal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::signals::Signals;

/// How often a bar is drawn while nothing moves it, for the time that passed.
const TICK: Duration = Duration::from_millis(200);

pub(crate) struct Steps {
    signals: Signals,
    bar: ProgressBar,
    is_stopping: bool,
}

impl Steps {
    /// `there`: how much there is to do, where that is known. The bar is on standard error, and only
    /// where that is a terminal.
    pub(crate) fn new(signals: Signals, there: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(there, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self {
            signals,
            bar,
            is_stopping: false,
        }
    }

    /// Does a step to its end, also when a signal comes: the next one must not be begun then. `None`
    /// when a second signal came, which does not wait.
    pub(crate) async fn step<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! { biased;
                done = &mut work => return Some(done),
                () = self.signals.next() => {
                    if self.is_stopping {
                        return None;
                    }
                    self.is_stopping = true;
                    self.warn(
                        "stopping: the step under way is finished; a second signal does not wait for it",
                    );
                }
            }
        }
    }

    /// Waits, or less long when a signal comes: the next step must not be begun then.
    pub(crate) async fn pause(&mut self, time: Duration) {
        tokio::select! { biased;
            () = self.signals.next() => self.is_stopping = true,
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Begins another part of the work, of which this much is there. The bar's template shows `{msg}`.
    pub(crate) fn begin(&self, what: &'static str, there: u64) {
        self.bar.set_message(what);
        self.bar.set_length(there);
        self.bar.reset();
    }

    /// A line beside the bar.
    pub(crate) fn warn(&self, line: &str) {
        self.bar.suspend(|| tracing::warn!("{line}"));
    }

    /// How much is done.
    pub(crate) fn reached(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Whether a signal asked for the end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
