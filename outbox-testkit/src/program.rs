//! A program of the workspace as a child process.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// A process at work, with the lines that it wrote to standard error. Dropping it kills it.
///
/// Nothing here waits for what the process does next: that is for the test, which knows for how
/// long. Every method panics when the system refuses, since no test can go on then.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Program {
    /// Starts it with nothing on its standard input; its standard output goes where the command
    /// says.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()));
        let stderr = child.stderr.take().expect("standard error is a pipe");
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                lines.lock().unwrap().push(line.unwrap());
            }
        });
        Self {
            child,
            log,
            reader: Some(reader),
        }
    }

    /// Its standard output, when the command made that a pipe; once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The lines that it wrote to standard error so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Whether a line has this text.
    pub fn logged(&self, text: &str) -> bool {
        let log = self.log.lock().unwrap();
        log.iter().any(|line| line.contains(text))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, without a limit; [`log`](Self::log) is whole then.
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            // Bytes that are no UTF-8 end the reader.
            reader.join().expect("the log is text");
        }
        status
    }

    /// Time of processors that it used so far, exact to 10 ms.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name, in parentheses, may hold anything; the fields count from behind it.
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // Linux tells it in hundredths of a second on every platform.
        Duration::from_millis(ticks * 10)
    }

    /// Status and body of an answer of the HTTP server whose address the log tells, as
    /// `address=127.0.0.1:9187`; it must have told it already.
    pub fn get(&self, path: &str) -> (u16, String) {
        let log = self.log();
        let address = log
            .iter()
            .find_map(|line| line.split("address=").nth(1))
            .and_then(|rest| rest.split_whitespace().next())
            .expect("an address in the log");
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
