//! A private PostgreSQL.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::{PermissionsExt as _, chown},
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

use rustix::process::{Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::{
    clock::FakeClock,
    find,
    process::{Process, Running},
};
use crate::port::Port;

/// PostgreSQL refuses to run as root; Debian's package makes this user.
const USER: &str = "postgres";

/// A PostgreSQL cluster on a free loopback port with a data folder of its own; superuser
/// `postgres`, no password, commits that last. Dropping it kills the server and removes the data.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    settings: Vec<(String, String)>,
    /// What makes it read another clock than the machine's.
    clock: Vec<(&'static str, OsString)>,
    folder: TempDir,
    port: Port,
    process: Running,
}

impl Postgres {
    /// Makes a cluster, starts it and waits until it takes connections.
    ///
    /// # Errors
    /// No programs (the message names the variable to set), no port, or the server's own words.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// The same with more settings, as `[("max_connections", "20")]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        Self::make(settings, Vec::new())
    }

    /// The same, with this as the server's clock.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_under(clock: &FakeClock) -> io::Result<Self> {
        Self::make(&[], clock.environment())
    }

    fn make(settings: &[(&str, &str)], clock: Vec<(&'static str, OsString)>) -> io::Result<Self> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut postgres = Self {
            programs: find::postgres()?,
            settings: settings.iter().map(own).collect(),
            clock,
            folder: tempfile::Builder::new()
                .prefix("outbox-postgres-")
                .tempdir()?,
            port: Port::take()?,
            process: Running::default(),
        };
        postgres.make_cluster()?;
        postgres.restart()?;
        Ok(postgres)
    }

    /// `postgres://…` of the database `postgres`, the same after a restart.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// SIGKILL to all of its processes, as when the machine loses power (the page cache survives).
    /// Does nothing when it does not run.
    ///
    /// # Errors
    /// When a process can't be killed or waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    /// Ends all sessions and stops it in good order ("fast").
    ///
    /// # Errors
    /// When it does not stop within a minute; it is killed then.
    pub fn stop(&mut self) -> io::Result<()> {
        self.process.stop(Signal::INT)
    }

    /// Starts it again on the same port and data, after stopping it if it runs; waits until it
    /// takes connections, recovery included.
    ///
    /// # Errors
    /// The server's own words, when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop()?;
        // Shared memory of killed processes may live on for a moment, and a new server refuses to
        // start beside it.
        let mut tries = 0;
        loop {
            match self.try_start() {
                Err(error) if tries < 20 && error.to_string().contains("shared memory") => {
                    tries += 1;
                    thread::sleep(Duration::from_millis(100));
                }
                result => return result,
            }
        }
    }

    /// Starts it again as a hot standby that waits for more WAL: reads are answered, writes refused.
    /// It stays one through restarts.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restart_as_standby(&mut self) -> io::Result<()> {
        self.stop()?;
        std::fs::write(self.data().join("standby.signal"), "")?;
        self.restart()
    }

    /// Starts it again in a recovery that lets nobody in: every session is refused as by a server
    /// that is starting up (57P03). The next [`restart`](Self::restart) makes it a primary again.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restart_closed(&mut self) -> io::Result<()> {
        self.stop()?;
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "")?;
        self.start_until(&[("hot_standby", "off")], |address| {
            first_answer(address).is_ok_and(|answer| answer == b'E')
        })?;
        // Read at the start only.
        fs::remove_file(signal)
    }

    fn try_start(&mut self) -> io::Result<()> {
        self.start_until(&[], takes_connections)
    }

    fn start_until(
        &mut self,
        more: &[(&str, &str)],
        ready: fn(SocketAddr) -> bool,
    ) -> io::Result<()> {
        let mut command = self.unprivileged("postgres", &self.clock);
        command.arg("-D").arg(self.data());
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("wal_level", "logical"),
            ("max_connections", "200"),
            ("shared_buffers", "64MB"),
        ];
        let given = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in fixed.into_iter().chain(given).chain(more.iter().copied()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.arg("-p").arg(self.port.to_string());
        let (log, address) = (self.log(), self.address());
        let mut process = Process::start(&mut command, &log)?;
        process.wait_until(&log, || ready(address))?;
        self.process.begin(process);
        Ok(())
    }

    /// SIGSTOP to all of its processes: connections stay open and nothing is answered, until
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// SIGCONT to all of its processes.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal_all(Signal::CONT)
    }

    fn signal_all(&self, signal: Signal) -> io::Result<()> {
        let process = self.process.get()?;
        // The parent first: it makes no new children then.
        process.signal(signal)?;
        for child in process.children() {
            // A session may have ended meanwhile.
            let _ = kill_process(child, signal);
        }
        Ok(())
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn make_cluster(&self) -> io::Result<()> {
        // The server's user must be able to pass through; the data itself stays closed to others.
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir(self.data())?;
        if geteuid().is_root() {
            chown(self.data(), Some(id("-u")?), Some(id("-g")?))?;
        }
        let mut initdb = self.unprivileged("initdb", &[]);
        initdb.arg("-D").arg(self.data());
        initdb.args([
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-A",
            "trust",
            "--no-sync",
        ]);
        run(&mut initdb).map(|_| ())
    }

    /// The program as [`USER`] when this process is root, from a folder that everybody can enter.
    fn unprivileged(&self, program: &str, environment: &[(&str, OsString)]) -> Command {
        let mut command = if geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid", USER, "--regid", USER, "--clear-groups", "env"])
                .env("HOME", "/nonexistent");
            command
        } else {
            Command::new("env")
        };
        // Set behind the change of user: a preloaded library would begin as root before it, and could
        // not open again what it made.
        for (name, value) in environment {
            let mut pair = OsString::from(name);
            pair.push("=");
            pair.push(value);
            command.arg(pair);
        }
        command.arg(self.programs.join(program));
        command.current_dir("/").env("LC_ALL", "C.UTF-8");
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Nothing can be done about a failure here.
        let _ = self.kill();
    }
}

fn id(option: &str) -> io::Result<u32> {
    let text = run(Command::new("id").args([option, USER]))?;
    text.trim().parse().map_err(io::Error::other)
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{program}: {said}")))
}

/// Whether a session can begin: the server asks for authentication ('R').
fn takes_connections(address: SocketAddr) -> bool {
    first_answer(address).is_ok_and(|answer| answer == b'R')
}

/// The first byte of the answer to a start-up packet for the superuser: 'R' asks for
/// authentication, 'E' is an error (starting up, in recovery).
fn first_answer(address: SocketAddr) -> io::Result<u8> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut packet = 196_608_u32.to_be_bytes().to_vec();
    packet.extend(b"user\0postgres\0database\0postgres\0\0");
    let length = u32::try_from(packet.len() + 4).map_err(io::Error::other)?;
    stream.write_all(&[length.to_be_bytes().as_slice(), &packet].concat())?;
    let mut answer = [0; 1];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}
