//! The program as a process.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outbox_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};

use super::until;

/// Settings of a relay process.
#[derive(Debug, Clone)]
pub(crate) struct Settings(BTreeMap<String, String>);

impl Settings {
    pub(crate) fn relay() -> Self {
        Self(BTreeMap::new())
            .set("http.listen", "127.0.0.1:0")
            .set("relay.shutdown_grace", "5s")
    }

    /// A key of the configuration file, as `store.lease`.
    pub(crate) fn set(mut self, key: &str, value: impl Into<String>) -> Self {
        let name = format!("OUTBOX__{}", key.to_uppercase().replace('.', "__"));
        self.0.insert(name, value.into());
        self
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

/// A process at work. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in stderr.lines() {
                lines.lock().unwrap().push(line.unwrap());
            }
        });
        Self {
            child,
            log,
            reader: Some(reader),
        }
    }

    /// The lines that it wrote to standard error so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Whether a line has this text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        self.log
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(text))
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

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; gives the exit code (`None` after a signal) and how long it took.
    pub(crate) async fn ended(&mut self) -> (Option<i32>, Duration) {
        let since = Instant::now();
        until("the end of the process", async || !self.is_running()).await;
        let took = since.elapsed();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (self.child.wait().unwrap().code(), took)
    }

    /// Stops it as a supervisor does; it must drain and end well. Gives its log.
    pub(crate) async fn stop(mut self) -> Vec<String> {
        self.signal(Signal::TERM);
        let (code, _) = self.ended().await;
        let log = self.log();
        assert_eq!(code, Some(0), "{}", log.join("\n"));
        log
    }

    /// Time of processors that it used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // Linux tells it in hundredths of a second on every platform.
        Duration::from_millis(ticks * 10)
    }

    /// The body of an answer of its HTTP server.
    pub(crate) async fn get(&self, path: &str) -> String {
        self.until_log("serving /metrics").await;
        let log = self.log();
        let address = log
            .iter()
            .find_map(|line| line.split("address=").nth(1))
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap()
            .to_owned();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
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

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
