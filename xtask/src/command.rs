//! Running other programs: to the terminal, for their output, or line by line under a deadline.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::interrupt;

/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Lets output that is already in the pipe arrive after the program has ended. A process that
/// the program left behind may hold the pipe open for ever, so its end is not awaited.
const DRAIN: Duration = Duration::from_millis(500);

/// The time a program has for its own clean-up before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Runs it with its output on the terminal; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| cannot_run(command))?;
    if !status.success() {
        bail!("`{}` failed: {status}", show(command));
    }
    Ok(())
}

/// Runs it and gives what it printed; an exit code other than 0 is an error with its last words.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| cannot_run(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{}` failed: {}: {}",
            show(command),
            output.status,
            stderr.trim()
        );
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed no UTF-8", show(command)))
}

/// Where the program is on the search path.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// [`run`] for a program that takes long: when this tool is asked to end, so is the program.
pub(crate) fn run_watched(command: &mut Command) -> Result<()> {
    command.stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn().with_context(|| cannot_run(command))?;
    let group = Pid::from_child(&child);
    loop {
        match look(&mut child, group, None)? {
            None => std::thread::sleep(POLL),
            Some(End::Exited(status)) if status.success() => return Ok(()),
            Some(End::Exited(status)) => bail!("`{}` failed: {status}", show(command)),
            Some(End::TimedOut | End::Interrupted) => bail!("`{}` was stopped", show(command)),
        }
    }
}

/// How a program run by [`stream`] ended.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// It was stopped at its deadline.
    TimedOut,
    /// It was stopped because this tool was asked to end.
    Interrupted,
}

/// Runs it in a process group of its own, standard output and error as one stream, and calls
/// `on_line` for each line. Gives the process group too, to look for what was left in it.
///
/// The group keeps Ctrl-C at the terminal away from it: the tool decides when it ends.
pub(crate) fn stream(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<(End, Pid)> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("cannot share a pipe")?)
        .stderr(writer)
        .process_group(0);
    let mut child = command.spawn().with_context(|| cannot_run(command))?;
    let group = Pid::from_child(&child);
    // The command still holds the pipe's end for writing; without this it would never close.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|bytes| bytes > 0)
        {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(text).is_err() {
                break;
            }
            line.clear();
        }
    });

    let deadline = Instant::now() + limit;
    let end = loop {
        match lines.recv_timeout(POLL) {
            Ok(line) => on_line(&line),
            Err(RecvTimeoutError::Timeout) => {}
            // It closed its output and still runs: nothing else would pace this loop.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
        }
        if let Some(end) = look(&mut child, group, Some(deadline))? {
            break end;
        }
    };
    let drained_by = Instant::now() + DRAIN;
    while let Ok(line) = lines.recv_timeout(drained_by.saturating_duration_since(Instant::now())) {
        on_line(&line);
    }
    Ok((end, group))
}

/// Whether it ended; past its deadline or after a signal it is made to.
fn look(child: &mut Child, group: Pid, deadline: Option<Instant>) -> Result<Option<End>> {
    if let Some(status) = child.try_wait().context("cannot wait for a program")? {
        return Ok(Some(End::Exited(status)));
    }
    let end = if interrupt::requested() {
        End::Interrupted
    } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        End::TimedOut
    } else {
        return Ok(None);
    };
    // An error means that the group is gone already, which is what is wanted.
    let _ = kill_process_group(group, Signal::TERM);
    let killed_at = Instant::now() + GRACE;
    while child
        .try_wait()
        .context("cannot wait for a program")?
        .is_none()
    {
        if Instant::now() >= killed_at {
            let _ = kill_process_group(group, Signal::KILL);
        }
        std::thread::sleep(POLL);
    }
    Ok(Some(end))
}

/// The command as a person would type it.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

fn cannot_run(command: &Command) -> String {
    format!("cannot run `{}`", command.get_program().to_string_lossy())
}

/// Prints a line at once, so that what a killed run had printed is not lost.
pub(crate) fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    // A closed pipe (`… | head`) is no reason to leave servers running.
    let _ = writeln!(stdout, "{line}");
    let _ = stdout.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn lines_of(script: &str, limit: Duration) -> (End, Vec<String>) {
        let mut lines = vec![];
        let (end, _) = stream(&mut shell(script), limit, |line| lines.push(line.into())).unwrap();
        (end, lines)
    }

    #[test]
    fn both_streams_arrive_in_order() {
        let script = "echo one; echo two >&2; printf three; exit 3";
        let (end, lines) = lines_of(script, Duration::from_mins(1));
        assert_eq!(lines, ["one", "two", "three"]);
        let End::Exited(status) = end else {
            panic!("{end:?}");
        };
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn hanging_program_is_stopped_with_its_children() {
        let started = Instant::now();
        let (end, lines) = lines_of("echo up; sleep 600 & wait", Duration::from_millis(200));
        assert_eq!(end, End::TimedOut);
        assert_eq!(lines, ["up"]);
        assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
    }

    #[test]
    fn program_left_behind_does_not_hold_the_stream() {
        let mut lines = vec![];
        let started = Instant::now();
        let mut command = shell("echo left; sleep 600 &");
        let (_, group) = stream(&mut command, Duration::from_mins(1), |line| {
            lines.push(line.to_owned());
        })
        .unwrap();
        kill_process_group(group, Signal::KILL).unwrap();
        assert_eq!(lines, ["left"]);
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn failed_command_says_what_it_said() {
        let error = output(&mut shell("echo broken >&2; exit 2"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("broken") && error.contains("exit status: 2"),
            "{error}"
        );
    }
}
