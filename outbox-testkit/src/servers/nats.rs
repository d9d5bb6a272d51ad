//! A private NATS with JetStream.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
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

/// A NATS server with JetStream on a free loopback port, with a data folder of its own. Dropping it
/// kills the server and removes the data.
///
/// A kill of the process loses nothing that was acknowledged: it is with the operating system. What
/// `sync_interval: always` would add is for the loss of the machine, which no test plays.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    settings: String,
    folder: TempDir,
    port: Port,
    process: Running,
}

impl Nats {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// No program (the message names the variable to set), no port, or the server's own words.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Starts one with more lines in its configuration, as `max_payload: 8KB`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &str) -> io::Result<Self> {
        let mut nats = Self {
            program: find::nats()?,
            settings: settings.to_owned(),
            folder: tempfile::Builder::new().prefix("outbox-nats-").tempdir()?,
            port: Port::take()?,
            process: Running::default(),
        };
        nats.restart()?;
        Ok(nats)
    }

    /// `nats://…`, the same after a restart.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
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
        // TERM waits for nothing; INT would do the same.
        self.process.stop(Signal::TERM)
    }

    /// Starts it again on the same port and data, after stopping it if it runs; waits until it
    /// answers.
    ///
    /// # Errors
    /// The server's own words, when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop()?;
        let file = self.folder.path().join("nats.conf");
        fs::write(&file, self.configuration())?;
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&file);
        let mut process = Process::start(&mut command, &self.log())?;
        let (log, address) = (self.log(), self.address());
        process.wait_until(&log, || answers(address))?;
        self.process.begin(process);
        Ok(())
    }

    /// [`restart`](Self::restart) with these lines in place of the earlier ones.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restart_with(&mut self, settings: &str) -> io::Result<()> {
        settings.clone_into(&mut self.settings);
        self.restart()
    }

    fn configuration(&self) -> String {
        let folder = self.folder.path().join("js");
        let (port, store) = (&self.port, folder.display());
        // A setting of the test may be the whole of JetStream's.
        let jetstream = if self.settings.contains("jetstream") {
            String::new()
        } else {
            format!(
                "jetstream {{ store_dir: \"{store}\", max_memory_store: 64MB, max_file_store: 1GB }}\n"
            )
        };
        let settings = self.settings.replace("$STORE", &store.to_string());
        format!("server_name: outbox-test\nhost: 127.0.0.1\nport: {port}\n{jetstream}{settings}\n")
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

    /// The signal by which it leaves its clients one by one before it stops: lame duck mode.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn leave(&self) -> io::Result<()> {
        self.process.signal(Signal::USR2)
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        log_in(self.folder.path())
    }
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

/// Whether it greets who connects. It does so only when JetStream has its data back.
fn answers(address: SocketAddr) -> bool {
    let greeting = || -> io::Result<bool> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line.starts_with("INFO {"))
    };
    greeting().unwrap_or(false)
}
