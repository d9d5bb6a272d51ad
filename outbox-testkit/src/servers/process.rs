//! One server process, as its parent: a killed child is reaped, so that nobody takes the dead for
//! the living.

use std::{
    fs::File,
    io,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to start: RabbitMQ took over a minute on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(3);
/// How long it may take to stop in good order.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// A running child with its output in a log file.
#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    pub(super) fn start(command: &mut Command, log: &Path) -> io::Result<Self> {
        let log = File::options().append(true).create(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self(child))
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        kill_process(Pid::from_child(&self.0), signal)?;
        Ok(())
    }

    /// SIGSTOP, and waits until each of its threads has stopped: one that still runs may answer.
    pub(super) fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let tasks = format!("/proc/{}/task", self.0.id());
        let is_stopped = |task: &Path| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit_once(')')
                .is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        let deadline = Instant::now() + STOP_LIMIT;
        while Instant::now() < deadline {
            let mut threads = std::fs::read_dir(&tasks)?.flatten();
            if threads.all(|thread| is_stopped(&thread.path())) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let message = "the server runs on in spite of SIGSTOP";
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }

    /// SIGKILL, and waits until it is gone. Works on a paused process too.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(|_| ())
    }

    /// The signal for a stop in good order; SIGKILL when that takes too long.
    pub(super) fn stop(&mut self, signal: Signal) -> io::Result<()> {
        if self.has_ended()? {
            return Ok(());
        }
        self.signal(signal)?;
        let deadline = Instant::now() + STOP_LIMIT;
        while Instant::now() < deadline {
            if self.has_ended()? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.kill()?;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server did not stop and was killed",
        ))
    }

    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// The processes whose parent it is.
    pub(super) fn children(&self) -> Vec<Pid> {
        let parent = self.0.id().to_string();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
                let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
                // The name, in parentheses, may hold anything; behind it: state, parent.
                let of = stat.rsplit_once(')')?.1.split_whitespace().nth(1)? == parent;
                of.then_some(Pid::from_raw(pid)?)
            })
            .collect()
    }

    /// Waits until `ready` says so; an error when the process ends before, with its log's end.
    pub(super) fn wait_until(&mut self, log: &Path, ready: impl Fn() -> bool) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if ready() {
                return Ok(());
            }
            if self.has_ended()? {
                return Err(io::Error::other(format!("the server ended: {}", tail(log))));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let message = format!("the server is not ready: {}", tail(log));
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; it is the child's end that counts.
        let _ = self.kill();
    }
}

/// The process of a server, while it runs.
#[derive(Debug, Default)]
pub(super) struct Running(Option<Process>);

impl Running {
    pub(super) fn begin(&mut self, process: Process) {
        self.0 = Some(process);
    }

    /// SIGKILL to it and to what it started. Does nothing when it does not run.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        let Some(mut process) = self.0.take() else {
            return Ok(());
        };
        let children = process.children();
        process.kill()?;
        for child in children {
            // Most ended by themselves when their parent did.
            let _ = kill_process(child, Signal::KILL);
        }
        Ok(())
    }

    /// Stops it by this signal. Does nothing when it does not run.
    pub(super) fn stop(&mut self, signal: Signal) -> io::Result<()> {
        self.0
            .take()
            .map_or(Ok(()), |mut process| process.stop(signal))
    }

    /// As [`Process::pause`]; an error when it does not run.
    pub(super) fn pause(&self) -> io::Result<()> {
        self.get()?.pause()
    }

    /// An error when it does not run.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        self.get()?.signal(signal)
    }

    /// An error when it does not run.
    pub(super) fn get(&self) -> io::Result<&Process> {
        let gone = || io::Error::other("the server does not run");
        self.0.as_ref().ok_or_else(gone)
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
