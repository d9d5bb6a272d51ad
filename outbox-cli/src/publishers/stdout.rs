//! The publisher `stdout`: one line of JSON an event.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    time::Duration,
};

use async_trait::async_trait;
use outbox_core::{
    Capabilities, Error, ErrorKind, OrderClass, Outcome, Publisher, Result, Scope, StoredEvent,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::event_json::EventJson;

/// How long a publish waits for a reader that does not read.
const DEADLINE: Duration = Duration::from_secs(30);

/// Writes events to standard output. `Delivered` means that the system took the whole line: with a
/// file it is in the page cache, with a pipe the reader may still lose it.
///
/// A thread of its own writes, because a full pipe blocks for as long as its reader sleeps.
pub(super) struct StdoutPublisher {
    writer: mpsc::Sender<Job>,
    deadline: Duration,
}

struct Job {
    lines: Vec<u8>,
    answer: oneshot::Sender<Written>,
}

/// What the thread did: bytes taken by the system, and why not all of them.
#[derive(Debug)]
struct Written {
    bytes: usize,
    error: Option<io::Error>,
}

impl StdoutPublisher {
    /// Takes standard output. `reader_gone` is cancelled when it turns out to be closed.
    ///
    /// # Errors
    /// `Unavailable` when there is no standard output.
    pub(super) fn new(reader_gone: CancellationToken) -> Result<Self> {
        let no_output = |error| {
            Error::new(
                ErrorKind::Unavailable,
                "open standard output",
                "it is closed",
            )
            .source(error)
        };
        // Not `io::Stdout`: its buffer would hide how many bytes the system took.
        let output = io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .map_err(no_output)?;
        Self::on(File::from(output), DEADLINE, reader_gone)
    }

    fn on(
        mut output: impl Write + Send + 'static,
        deadline: Duration,
        reader_gone: CancellationToken,
    ) -> Result<Self> {
        // One job waits at the most; a publish that finds the place taken fails without writing.
        let (writer, mut jobs) = mpsc::channel::<Job>(1);
        std::thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || {
                while let Some(job) = jobs.blocking_recv() {
                    // Its publish call gave up: written now, the lines would only be copies.
                    if job.answer.is_closed() {
                        continue;
                    }
                    let written = write(&mut output, &job.lines);
                    if written
                        .error
                        .as_ref()
                        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
                    {
                        reader_gone.cancel();
                    }
                    // A publish call that gave up meanwhile asks for no answer.
                    let _ = job.answer.send(written);
                }
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    "open standard output",
                    "no thread to write it",
                )
                .source(error)
            })?;
        Ok(Self { writer, deadline })
    }

    async fn write(&self, lines: Vec<u8>) -> std::result::Result<Written, Outcome> {
        let (answer, written) = oneshot::channel();
        let mut sent = false;
        let work = async {
            self.writer.send(Job { lines, answer }).await.ok()?;
            sent = true;
            written.await.ok()
        };
        match tokio::time::timeout(self.deadline, work).await {
            Ok(Some(written)) => Ok(written),
            Ok(None) => Err(Outcome::Unknown(failure(
                ErrorKind::Internal,
                "its writer has ended",
            ))),
            Err(_) if sent => Err(Outcome::Unknown(failure(
                ErrorKind::Timeout,
                "its reader did not read in time",
            ))),
            Err(_) => Err(Outcome::Failed(failure(
                ErrorKind::Timeout,
                "its reader has not yet read what came before",
            ))),
        }
    }
}

#[async_trait]
impl Publisher for StdoutPublisher {
    fn name(&self) -> &'static str {
        "stdout"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: OrderClass::InFlight,
            null_payload: true,
            ..Capabilities::default()
        }
    }

    async fn publish(&self, events: &[StoredEvent]) -> Vec<Outcome> {
        let mut lines = Vec::with_capacity(events.iter().map(|e| e.byte_len() + 256).sum());
        // Where each event's line ends; `Err` for one that has no line.
        let mut ends = Vec::with_capacity(events.len());
        for event in events {
            let start = lines.len();
            match serde_json::to_writer(&mut lines, &EventJson::whole(event)) {
                Ok(()) => {
                    lines.push(b'\n');
                    ends.push(Ok(lines.len()));
                }
                Err(error) => {
                    lines.truncate(start);
                    ends.push(Err(error.to_string()));
                }
            }
        }
        let written = self.write(lines).await;
        let mut start = 0;
        ends.into_iter()
            .map(|end| match end {
                Ok(end) => outcome(&written, std::mem::replace(&mut start, end), end),
                Err(reason) => Outcome::Rejected(
                    Error::new(ErrorKind::InvalidEvent, "write to standard output", reason)
                        .scope(Scope::Message),
                ),
            })
            .collect()
    }
}

/// What became of the line at these bytes.
fn outcome(written: &std::result::Result<Written, Outcome>, start: usize, end: usize) -> Outcome {
    match written {
        Ok(Written { error: None, .. }) => Outcome::delivered(),
        // The system took some of it before it failed, and nobody knows who read that.
        Ok(Written {
            bytes,
            error: Some(error),
        }) if start < *bytes || end <= *bytes => Outcome::Unknown(io_failure(error)),
        Ok(Written {
            error: Some(error), ..
        }) => Outcome::Failed(io_failure(error)),
        Err(Outcome::Failed(error)) => Outcome::Failed(error.copy()),
        Err(other) => Outcome::Unknown(
            other
                .error()
                .map_or_else(|| failure(ErrorKind::Internal, "no answer"), Error::copy),
        ),
    }
}

fn io_failure(error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ErrorKind::OutOfSpace
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "write to standard output", error.to_string())
}

fn failure(kind: ErrorKind, why: &'static str) -> Error {
    Error::new(kind, "write to standard output", why)
}

/// `write_all` and `flush`, but telling how far it came.
fn write(output: &mut impl Write, lines: &[u8]) -> Written {
    let mut bytes = 0;
    while bytes < lines.len() {
        match output.write(&lines[bytes..]) {
            Ok(0) => {
                return Written {
                    bytes,
                    error: Some(io::ErrorKind::WriteZero.into()),
                };
            }
            Ok(count) => bytes += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Written {
                    bytes,
                    error: Some(error),
                };
            }
        }
    }
    Written {
        bytes,
        error: output.flush().err(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::event_json::tests::stored;

    /// Takes `room` bytes and then fails as a closed pipe does.
    struct Pipe {
        room: usize,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.room -= count;
            self.taken
                .lock()
                .unwrap()
                .extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn three() -> Vec<StoredEvent> {
        vec![stored("text/plain", Some(b"x")); 3]
    }

    #[tokio::test]
    async fn delivered_lines_are_whole_lines() {
        let taken = Arc::default();
        let pipe = Pipe {
            room: usize::MAX,
            taken: Arc::clone(&taken),
        };
        let publisher = StdoutPublisher::on(pipe, DEADLINE, CancellationToken::new()).unwrap();
        let outcomes = publisher.publish(&three()).await;
        assert_eq!(outcomes.len(), 3);
        assert!(outcomes.iter().all(Outcome::is_delivered));
        let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
        assert!(text.ends_with('\n') && text.lines().count() == 3, "{text}");
        assert!(publisher.publish(&[]).await.is_empty());
    }

    #[tokio::test]
    async fn a_closed_pipe_fails_what_it_did_not_take() {
        let length = serde_json::to_vec(&EventJson::whole(&three()[0]))
            .unwrap()
            .len()
            + 1;
        let gone = CancellationToken::new();
        let pipe = Pipe {
            room: length + 3,
            taken: Arc::default(),
        };
        let publisher = StdoutPublisher::on(pipe, DEADLINE, gone.clone()).unwrap();
        let outcomes = publisher.publish(&three()).await;
        let names: Vec<_> = outcomes.iter().map(Outcome::as_str).collect();
        assert_eq!(names, ["unknown", "unknown", "failed"]);
        let error = outcomes[2].error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.failure_scope(), Scope::Destination);
        assert!(gone.is_cancelled());
    }

    /// Blocks until the test lets go of the other end.
    struct Stuck(std::sync::mpsc::Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_reader_that_sleeps_costs_the_deadline_and_no_more() {
        let (release, stuck) = std::sync::mpsc::channel();
        let deadline = Duration::from_millis(20);
        let publisher =
            StdoutPublisher::on(Stuck(stuck), deadline, CancellationToken::new()).unwrap();
        for expected in ["unknown", "unknown", "failed", "failed"] {
            let outcomes = publisher.publish(&three()).await;
            assert_eq!(outcomes[0].as_str(), expected);
            assert_eq!(outcomes[0].error().unwrap().kind(), ErrorKind::Timeout);
        }
        drop(release);
        for _ in 0..100 {
            if publisher.publish(&three()).await[0].is_delivered() {
                return;
            }
        }
        panic!("the publisher did not recover");
    }
}
