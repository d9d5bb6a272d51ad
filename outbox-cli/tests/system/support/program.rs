//! The program as a process.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    ops::{Deref, DerefMut},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use outbox_testkit::{eventually, program::Program, servers::FakeClock};
use rustix::process::Signal;

use super::until;

/// Settings of a relay process.
#[derive(Debug, Clone)]
pub(crate) struct Settings(BTreeMap<OsString, OsString>);

impl Settings {
    pub(crate) fn relay() -> Self {
        Self(BTreeMap::new())
            .set("http.listen", "127.0.0.1:0")
            .set("relay.shutdown_grace", "5s")
    }

    /// A key of the configuration file, as `store.lease`.
    pub(crate) fn set(mut self, key: &str, value: impl Into<String>) -> Self {
        let name = format!("OUTBOX__{}", key.to_uppercase().replace('.', "__"));
        self.0.insert(name.into(), value.into().into());
        self
    }

    /// With this as the process's wall clock.
    pub(crate) fn under(mut self, clock: &FakeClock) -> Self {
        let pairs = clock.environment().into_iter();
        self.0
            .extend(pairs.map(|(name, value)| (name.into(), value)));
        self
    }

    /// Runs another command of the program to its end, which must be good; gives what it printed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        clean(&mut command).args(arguments).envs(&self.0);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the relay; returns at once.
    pub(crate) fn start(&self) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        clean(&mut command).arg("relay").envs(&self.0);
        Running::start(command)
    }

    /// Starts the relay and waits until it works.
    pub(crate) async fn started(&self) -> Running {
        let running = self.start();
        running.until_log("relay started").await;
        running
    }
}

/// Takes the settings of the test's own environment from the command, except those by which the
/// integration run knows its children.
pub(crate) fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OUTBOX__") || name == "OUTBOX_CONFIG" {
            command.env_remove(name);
        }
    }
    command
}

/// A process at work, and the waiting for it.
pub(crate) struct Running(Program);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null());
        Self(Program::start(command))
    }

    /// Waits for a line with this text.
    #[track_caller]
    pub(crate) fn until_log(&self, text: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let found =
                eventually(super::patience(), async || self.logged(text).then_some(())).await;
            assert!(
                found.is_some(),
                "{caller}: no {text:?} in the log:\n{}",
                self.log().join("\n")
            );
        }
    }

    /// Watches it for this long while its broker takes nothing, or its database is down: it works
    /// next to nothing and hardly logs.
    pub(crate) async fn assert_rests(&self, during: Duration) {
        let (busy, lines) = (self.processor_time(), self.log().len());
        tokio::time::sleep(during).await;
        let busy = self.processor_time().saturating_sub(busy);
        let lines = self.log().len() - lines;
        assert!(busy < during / 5, "{busy:?} of work in {during:?}");
        // Two a minute for each cause.
        let lines_max = 10 * usize::try_from(1 + during.as_secs() / 60).unwrap();
        assert!(lines <= lines_max, "{lines} lines: {:#?}", self.log());
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.0.kill();
    }

    /// Waits for its end; gives the exit code (`None` after a signal) and how long it took.
    pub(crate) async fn ended(&mut self) -> (Option<i32>, Duration) {
        let since = Instant::now();
        until("the end of the process", async || !self.is_running()).await;
        let took = since.elapsed();
        (self.wait().code(), took)
    }

    /// Stops it as a supervisor does; it must drain and end well. Gives its log.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        self.signal(Signal::TERM);
        let (code, _) = self.ended().await;
        let log = self.log();
        assert_eq!(code, Some(0), "{}", log.join("\n"));
        log
    }

    /// The body of an answer of its HTTP server.
    pub(crate) async fn get(&self, path: &str) -> String {
        self.until_log("serving /metrics").await;
        self.0.get(path).1
    }

    /// The sum of a metric over all its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_whole_name = rest.starts_with('{') || rest.starts_with(' ');
            let value = rest.rsplit(' ').next()?;
            is_whole_name.then(|| value.parse::<f64>().unwrap())
        });
        values.sum()
    }
}

impl Deref for Running {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.0
    }
}
