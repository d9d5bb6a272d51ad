//! `outbox status --watch`

use std::time::{Duration, Instant};

use console::Term;
use outbox_core::{Error, ErrorKind};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::status::{Look, look};
use crate::{
    args::StatusArgs,
    config::StoreConfig,
    event_json::timestamp,
    exit::Failure,
    output::{duration, is_read, plain, print_more},
    signals::Signals,
    store,
};

/// Looks until a signal comes or nobody reads any more.
///
/// The first look fails like `status` for what waiting can't mend, as a wrong password; every other
/// failure is shown and looked through.
pub(crate) async fn run(
    args: &StatusArgs,
    interval: Duration,
    config: StoreConfig,
) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let store = store::open(config).await?;
    let mut watch = Watch::new(args.json);
    loop {
        let look = tokio::select! {
            () = signals.next() => return Ok(()),
            look = look(&*store, args.count_max) => look,
        };
        match look {
            Err(error) if watch.is_first() && error.kind().needs_operator() => {
                return Err(error.into());
            }
            look => {
                if !watch.show(look)? {
                    return Ok(());
                }
            }
        }
        tokio::select! {
            () = signals.next() => return Ok(()),
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// A failure that goes on.
struct Failing {
    kind: ErrorKind,
    /// The last one, as one line for people.
    line: String,
    since: Instant,
    looks: u64,
}

/// What was seen so far, and where it is shown.
struct Watch {
    form: Form,
    last: Option<Look>,
    failing: Option<Failing>,
}

enum Form {
    /// Drawn in place; so many lines stand there.
    Terminal { term: Term, lines: usize },
    /// A block a look.
    Text,
    /// An object a line.
    Json,
}

impl Watch {
    fn new(is_json: bool) -> Self {
        let term = Term::buffered_stdout();
        let form = match is_json {
            true => Form::Json,
            false if term.is_term() => Form::Terminal { term, lines: 0 },
            false => Form::Text,
        };
        Self {
            form,
            last: None,
            failing: None,
        }
    }

    fn is_first(&self) -> bool {
        self.last.is_none() && self.failing.is_none()
    }

    /// Shows what a look found; false when nobody reads any more.
    fn show(&mut self, look: Result<Look, Error>) -> Result<bool, Failure> {
        let is_news = match look {
            Ok(state) => {
                self.failing = None;
                self.last = Some(state);
                true
            }
            Err(error) => self.failed(error),
        };
        let now = timestamp(OffsetDateTime::now_utc());
        match &mut self.form {
            Form::Terminal { term, lines } => {
                let text = screen(&now, self.last.as_ref(), self.failing.as_ref());
                is_read(redraw(term, lines, &text))
            }
            // A failure that goes on is told once: a line a look would drown what was before.
            _ if !is_news => Ok(true),
            Form::Text => print_more(&block(&now, self.last.as_ref(), self.failing.as_ref())),
            Form::Json => print_more(&format!(
                "{}\n",
                object(&now, self.last.as_ref(), self.failing.as_ref())
            )),
        }
    }

    /// Takes a failure down; whether it is of another kind than the one before.
    fn failed(&mut self, error: Error) -> bool {
        let (kind, before) = (error.kind(), self.failing.take());
        let is_other = before.as_ref().is_none_or(|failing| failing.kind != kind);
        self.failing = Some(Failing {
            kind,
            line: plain(&Failure::from(error).to_string()),
            since: before.as_ref().map_or_else(Instant::now, |f| f.since),
            looks: before.map_or(0, |failing| failing.looks) + 1,
        });
        is_other
    }
}

/// All that stands on a terminal: the last state stays in view while the store fails.
fn screen(now: &str, last: Option<&Look>, failing: Option<&Failing>) -> String {
    let mut text = match failing {
        None => format!("{now}   Ctrl-C ends\n"),
        Some(failing) => format!(
            "{now}   Ctrl-C ends   no answer for {}, {} looks\n{}\n",
            duration(failing.since.elapsed()),
            failing.looks,
            failing.line
        ),
    };
    if let Some(state) = last {
        if failing.is_some() {
            text.push_str("before that:\n");
        }
        text.push_str(&state.to_text());
    }
    text
}

/// What a pipe gets: the state or, while the store fails, the failure alone.
fn block(now: &str, last: Option<&Look>, failing: Option<&Failing>) -> String {
    match (failing, last) {
        (Some(failing), _) => format!("{now}\n{}\n\n", failing.line),
        (None, Some(state)) => format!("{now}\n{}\n", state.to_text()),
        (None, None) => String::new(),
    }
}

/// The same as an object; `error` is there only while the store fails.
fn object(now: &str, last: Option<&Look>, failing: Option<&Failing>) -> Value {
    let mut object = match (failing, last) {
        (Some(failing), _) => json!({
            "error": failing.line,
            "error_kind": failing.kind.as_str(),
        }),
        (None, Some(state)) => state.to_json(),
        (None, None) => json!({}),
    };
    object["at"] = json!(now);
    object
}

/// Writes over what was drawn before. Lines are cut to the window: one that wraps, or scrolls out,
/// could not be found again.
fn redraw(term: &Term, lines: &mut usize, text: &str) -> std::io::Result<()> {
    let (height, width) = term.size();
    let height = usize::from(height).saturating_sub(1).max(1);
    term.move_cursor_up((*lines).min(height))?;
    term.clear_to_end_of_screen()?;
    *lines = 0;
    for line in text.lines().take(height) {
        let cut = console::truncate_str(line, usize::from(width).saturating_sub(1), "…");
        term.write_line(&cut)?;
        *lines += 1;
    }
    term.flush()
}
