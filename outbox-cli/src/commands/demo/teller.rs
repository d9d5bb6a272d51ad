//! What the demo says, on standard output and at a pace that can be read.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use console::{Style, style};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{exit::Failure, output::print_more};

/// How long a paragraph stands before what it announces happens.
const READING: Duration = Duration::from_millis(500);

/// Prints for the story and for the consumer. Cheap to clone.
#[derive(Clone)]
pub(super) struct Teller {
    ended: CancellationToken,
    failure: Arc<Mutex<Option<Failure>>>,
}

/// What kind of thing is told.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Plain,
    Good,
    Odd,
    Bad,
}

impl Teller {
    pub(super) fn new() -> Self {
        Self {
            ended: CancellationToken::new(),
            failure: Arc::default(),
        }
    }

    /// Ends when nobody reads any more, which is no failure, or when writing fails, which is one.
    pub(super) async fn reader_gone(&self) -> Result<(), Failure> {
        self.ended.cancelled().await;
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), Err)
    }

    /// A step's heading, what happens in it and why it matters, and time to read that.
    pub(super) async fn step(&self, heading: &str, text: &str) {
        self.say(&format!("\n{}\n{text}\n", style(heading).bold()));
        sleep(READING).await;
    }

    /// One thing that happened.
    pub(super) fn fact(&self, mark: Mark, word: &str, text: &str) {
        let look = match mark {
            Mark::Plain => Style::new(),
            Mark::Good => Style::new().green(),
            Mark::Odd => Style::new().yellow(),
            Mark::Bad => Style::new().red(),
        };
        self.say(&format!(
            "  {} {text}\n",
            look.apply_to(format!("{word:<9}"))
        ));
    }

    /// Text as it is.
    pub(super) fn say(&self, text: &str) {
        match print_more(text) {
            Ok(true) => return,
            Ok(false) => {}
            Err(failure) => {
                let mut kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                kept.get_or_insert(failure);
            }
        }
        self.ended.cancel();
    }
}
