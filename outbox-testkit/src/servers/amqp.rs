//! A private RabbitMQ.

use std::{
    fs,
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

/// A RabbitMQ node on a free loopback port, with data, name and a port mapper (epmd) of its own; user
/// `guest`. It takes about 10 seconds to start. Dropping it kills both processes and removes the
/// data.
#[derive(Debug)]
pub struct RabbitMq {
    /// Where `rabbitmq-server` and `rabbitmqctl` are.
    programs: PathBuf,
    folder: TempDir,
    port: Port,
    distribution: Port,
    names: Port,
    /// Erlang's table of names and ports, without which a node does not start.
    mapper: Option<Process>,
    process: Running,
}

impl RabbitMq {
    /// Starts one and waits until it takes connections.
    ///
    /// # Errors
    /// No program (the message names the variable to set), no port, or the server's own words.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts one with more settings, as `[("frame_max", "8192")]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        Self::start_with_plugins(settings, &[])
    }

    /// The same with plugins, as `["rabbitmq_management"]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_plugins(settings: &[(&str, &str)], plugins: &[&str]) -> io::Result<Self> {
        let mut server = Self {
            programs: find::rabbitmq()?,
            folder: tempfile::Builder::new()
                .prefix("outbox-rabbitmq-")
                .tempdir()?,
            port: Port::take()?,
            distribution: Port::take()?,
            names: Port::take()?,
            mapper: None,
            process: Running::default(),
        };
        server.write_settings(settings, plugins)?;
        let mut mapper = Command::new(find::epmd()?);
        mapper.args(["-port", &server.names.to_string(), "-address", "127.0.0.1"]);
        mapper.env("RABBITMQ_NODENAME", server.node());
        server.mapper = Some(Process::start(&mut mapper, &server.path("names.log"))?);
        server.restart()?;
        Ok(server)
    }

    fn write_settings(&self, settings: &[(&str, &str)], plugins: &[&str]) -> io::Result<()> {
        for folder in ["home", "data", "log"] {
            fs::create_dir(self.path(folder))?;
        }
        // The limits of the machine that tests run on must not block publishers.
        let mut text = format!(
            "listeners.tcp.1 = {}\ndisk_free_limit.absolute = 50MB\n\
             vm_memory_high_watermark.absolute = 2GB\nlog.console = true\nlog.file = false\n",
            self.address()
        );
        for &(name, value) in settings {
            text.extend([name, " = ", value, "\n"]);
        }
        fs::write(self.path("rabbitmq.conf"), text)?;
        let plugins = format!("[{}].", plugins.join(","));
        fs::write(self.path("enabled_plugins"), plugins)
    }

    /// `amqp://…` of the virtual host `/`, the same after a restart.
    pub fn url(&self) -> String {
        format!("amqp://{}/%2f", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// SIGKILL to the node and what it started. Does nothing when it does not run.
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

    /// Starts it again on the same port and data, after stopping it if it runs; waits until it takes
    /// connections.
    ///
    /// # Errors
    /// The server's own words, when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop()?;
        let (log, address) = (self.log(), self.address());
        let mut process = Process::start(&mut self.command("rabbitmq-server"), &log)?;
        process.wait_until(&log, || answers(address))?;
        self.process.begin(process);
        Ok(())
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

    /// Runs `rabbitmqctl` on this node and returns what it printed. Takes about a second.
    ///
    /// # Errors
    /// The program's own words.
    pub fn ctl(&self, arguments: &[&str]) -> io::Result<String> {
        let output = self
            .command("rabbitmqctl")
            .arg("-q")
            .args(arguments)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "rabbitmqctl {arguments:?}: {said} {complaint}"
        )))
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        self.path("server.log")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn node(&self) -> String {
        format!("outbox-{}@localhost", self.port)
    }

    /// A program with all that leads it to this node and keeps it from every other. The packages'
    /// wrappers on the path change the user and lose the environment, so these are not they.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        let path = |name: &str| self.path(name);
        command
            // The cookie that nodes and their tools share is made there.
            .env("HOME", path("home"))
            .env("LANG", "C.UTF-8")
            .env("ERL_EPMD_PORT", self.names.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", self.node())
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins"))
            .env("RABBITMQ_MNESIA_BASE", path("data"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_PID_FILE", path("pid"))
            // Makes the script become the node instead of waiting for it: its pid is the node's.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false +sbwt none",
            );
        command
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        // Nothing can be done about a failure here. The mapper ends with its value.
        let _ = self.kill();
    }
}

/// Whether it begins a session: it answers the header of the protocol by a method's frame.
fn answers(address: SocketAddr) -> bool {
    let begin = || -> io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"AMQP\0\0\x09\x01")?;
        let mut answer = [0; 1];
        stream.read_exact(&mut answer)?;
        Ok(answer == [1])
    };
    begin().unwrap_or(false)
}

/// Debian's folder of the programs themselves.
pub(super) const DEBIAN: &str = "/usr/lib/rabbitmq/bin";

/// Whether the folder has the programs.
pub(super) fn is_complete(folder: &Path) -> bool {
    ["rabbitmq-server", "rabbitmqctl"]
        .iter()
        .all(|program| folder.join(program).is_file())
}
