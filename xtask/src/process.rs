//! Processes by identity, as Linux's `/proc` tells it: a number alone may meanwhile be another's.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

/// How often a process that shall end is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Set for every test process, and so for all that it starts: what carries it afterwards was
/// left behind.
pub(crate) const MARKER: &str = "OUTBOX_TEST_RUN";

/// A process and when it started: pids are given out again, this pair is not (until a reboot).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Clock ticks from boot to the start of the process.
    started_ticks: u64,
}

impl Identity {
    /// The process that has this pid now.
    pub(crate) fn of(pid: i32) -> Result<Self> {
        let stat = Stat::read(pid)
            .with_context(|| format!("process {pid} is not in /proc (the services need Linux)"))?;
        Ok(Self {
            pid,
            started_ticks: stat.started_ticks,
        })
    }

    /// Whether it still runs. A zombie does not: it only waits to be reaped.
    pub(crate) fn is_alive(self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| {
            stat.state != 'Z' && stat.state != 'X' && stat.started_ticks == self.started_ticks
        })
    }

    /// Asks it to end by `signal`, and kills it when it has not ended within `patience`.
    /// Does nothing when it is gone, whoever has its pid now.
    pub(crate) fn stop(self, signal: Signal, patience: Duration) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
            return Ok(());
        };
        for (signal, patience) in [(signal, patience), (Signal::KILL, Duration::from_secs(10))] {
            // An error means that it ended in between.
            let _ = kill_process(pid, signal);
            let until = Instant::now() + patience;
            while Instant::now() < until {
                // Reaps it if it is a child of this process; else its parent does.
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
                if !self.is_alive() {
                    return Ok(());
                }
                std::thread::sleep(POLL);
            }
        }
        bail!("process {} does not end, not even by SIGKILL", self.pid);
    }
}

/// A process that a test run left behind.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) identity: Identity,
    pub(crate) command: String,
}

/// The processes that carry [`MARKER`] with this value or are in the process group.
pub(crate) fn leftovers(marker: &str, group: Pid) -> Result<Vec<Leftover>> {
    let wanted = format!("{MARKER}={marker}");
    let mut found = vec![];
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let name = entry.context("cannot read /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(stat) = Stat::read(pid).filter(|stat| stat.state != 'Z') else {
            continue;
        };
        // Another user's environment cannot be read; the group still tells.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_marked = environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == wanted.as_bytes());
        if is_marked || stat.group == group.as_raw_nonzero().get() {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let identity = Identity {
                pid,
                started_ticks: stat.started_ticks,
            };
            found.push(Leftover {
                identity,
                command: command.trim().to_owned(),
            });
        }
    }
    Ok(found)
}

/// The fields of `/proc/PID/stat` that are needed; `proc_pid_stat(5)` numbers them from 1.
struct Stat {
    state: char,
    group: i32,
    started_ticks: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The second field, the name in parentheses, may hold spaces and parentheses itself.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            group: fields.get(2)?.parse().ok()?,
            started_ticks: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    /// A child that ends with its test, also when that fails.
    struct Ended(Child);

    impl Ended {
        fn identity(&self) -> Identity {
            Identity::of(i32::try_from(self.0.id()).unwrap()).unwrap()
        }
    }

    impl Drop for Ended {
        fn drop(&mut self) {
            // An error means that it ended and was reaped before.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn stat_of_a_process_with_an_odd_name() {
        let text = "77 (a) b (c) S 1 55 55 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(
            (stat.state, stat.group, stat.started_ticks),
            ('S', 55, 98765)
        );
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_stopped() {
        let child = Ended(Command::new("sleep").arg("600").spawn().unwrap());
        let real = child.identity();
        let former = Identity {
            started_ticks: real.started_ticks - 1,
            ..real
        };
        assert!(!former.is_alive());
        former.stop(Signal::KILL, Duration::from_secs(1)).unwrap();
        assert!(real.is_alive());
        real.stop(Signal::TERM, Duration::from_secs(10)).unwrap();
        assert!(!real.is_alive());
    }

    #[test]
    fn process_that_ignores_the_signal_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; while :; do sleep 0.1; done"]);
        let child = Ended(command.spawn().unwrap());
        let identity = child.identity();
        // Time for the trap to be set; an earlier signal would end it, which passes as well.
        std::thread::sleep(Duration::from_millis(200));
        identity
            .stop(Signal::TERM, Duration::from_millis(300))
            .unwrap();
        assert!(!identity.is_alive());
    }

    #[test]
    fn marked_process_in_another_group_is_found() {
        let marker = format!("unit-{}", std::process::id());
        let mut command = Command::new("sleep");
        command.arg("600").env(MARKER, &marker).process_group(0);
        let child = Ended(command.spawn().unwrap());
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        let found = leftovers(&marker, nobody).unwrap();
        let by_group = leftovers("another", Pid::from_child(&child.0)).unwrap();
        drop(child);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].command.contains("sleep 600"), "{found:?}");
        assert_eq!(by_group.len(), 1, "{by_group:?}");
        assert!(leftovers(&marker, nobody).unwrap().is_empty());
    }
}
