//! A private Redis.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    find,
    process::{Process, Running},
};
use crate::port::Port;

/// A Redis on a free loopback port with a data folder of its own. Writes are synced before they are
/// acknowledged (`appendfsync always`), so that a kill loses nothing that was acknowledged. Dropping
/// it kills the server and removes the data.
#[derive(Debug)]
pub struct Redis {
    program: PathBuf,
    arguments: Vec<String>,
    folder: TempDir,
    port: Port,
    process: Running,
}

impl Redis {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// No program (the message names the variable to set), no port, or the server's own words.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one with more arguments for the program, as `["--maxmemory", "5mb"]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(arguments: &[&str]) -> io::Result<Self> {
        let mut redis = Self {
            program: find::redis()?,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            folder: tempfile::Builder::new().prefix("outbox-redis-").tempdir()?,
            port: Port::take()?,
            process: Running::default(),
        };
        redis.restart()?;
        Ok(redis)
    }

    /// `redis://…`, the same after a restart.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// SIGKILL. Does nothing when it does not run.
    ///
    /// # Errors
    /// When the process can't be killed or waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    /// Stops it in good order.
    ///
    /// # Errors
    /// When it does not stop within a minute; it is killed then.
    pub fn stop(&mut self) -> io::Result<()> {
        self.process.stop(Signal::TERM)
    }

    /// Starts it again on the same port and data, after stopping it if it runs; waits until it
    /// answers.
    ///
    /// # Errors
    /// The server's own words, when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop()?;
        let mut process = self.spawn()?;
        let (log, address) = (self.log(), self.address());
        process.wait_until(&log, || answers(address))?;
        self.process.begin(process);
        Ok(())
    }

    /// Starts it again with these arguments in place of the earlier ones, and does not wait: it may
    /// not listen yet, or be loading its data.
    ///
    /// # Errors
    /// When the program can't be started. A server that ends at once is not noticed.
    pub fn restart_unready(&mut self, arguments: &[&str]) -> io::Result<()> {
        self.stop()?;
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        let process = self.spawn()?;
        self.process.begin(process);
        Ok(())
    }

    fn spawn(&self) -> io::Result<Process> {
        let mut command = Command::new(&self.program);
        command
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &self.port.to_string(),
                "--save",
                "",
            ])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
            .arg(self.folder.path())
            .args(&self.arguments);
        Process::start(&mut command, &self.log())
    }

    /// SIGSTOP: connections stay open and nothing is answered, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When the process is gone.
    pub fn pause(&self) -> io::Result<()> {
        self.process.pause()
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn resume(&self) -> io::Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        log_in(self.folder.path())
    }
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

/// Whether it answers a PING; any answer will do when a password is asked for, LOADING will not.
fn answers(address: SocketAddr) -> bool {
    let ping = || -> io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 16];
        let read = stream.read(&mut answer)?;
        Ok(answer[..read].starts_with(b"+PONG") || answer[..read].starts_with(b"-NOAUTH"))
    };
    ping().unwrap_or(false)
}
