//! A private Kafka: one node that is broker and controller, run from jars.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    find,
    process::{Process, Running},
};
use crate::port::Port;

/// The same for every server, so that a data folder fits the next start.
const CLUSTER_ID: &str = "4Ok7QBMKQaKPfAbaCvNprA";
const STARTED: &str = "Kafka Server started";
/// The second compiler costs more than it gives in a test's life.
const SHORT_LIFE: &[&str] = &["-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1"];
const LOAD: &[&str] = &["-Xms1g", "-Xmx1g"];
const LOG_SETTINGS: &str = "\
rootLogger.level=WARN
rootLogger.appenderRef.stdout.ref=STDOUT
appender.console.type=Console
appender.console.name=STDOUT
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=INFO
";

/// A Kafka on a free loopback port with a data folder of its own; topics are not made by
/// themselves. What was acknowledged survives a kill, as the system keeps what was written.
/// Dropping it kills the server and removes the data.
#[derive(Debug)]
pub struct Kafka {
    jars: PathBuf,
    settings: Vec<(String, String)>,
    format_arguments: Vec<String>,
    machine: &'static [&'static str],
    folder: TempDir,
    port: Port,
    controller_port: Port,
    process: Running,
}

impl Kafka {
    /// Starts one and waits until it serves, which takes about 6 seconds.
    ///
    /// # Errors
    /// No program (the message names the variable to set), no port, or the server's own words.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[], &[])
    }

    /// Starts one with these settings on top of the usual ones, and these arguments for the tool
    /// that formats the data folder, as `["--add-scram", "SCRAM-SHA-256=[name=u,password=p]"]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[(&str, &str)], format_arguments: &[&str]) -> io::Result<Self> {
        Self::start_on(SHORT_LIFE, settings, format_arguments)
    }

    /// Starts one that is to be measured: with both compilers and more memory.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_for_load() -> io::Result<Self> {
        Self::start_on(LOAD, &[], &[])
    }

    fn start_on(
        machine: &'static [&'static str],
        settings: &[(&str, &str)],
        format_arguments: &[&str],
    ) -> io::Result<Self> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut kafka = Self {
            jars: find::kafka()?,
            settings: settings.iter().map(own).collect(),
            format_arguments: format_arguments.iter().map(ToString::to_string).collect(),
            machine,
            folder: tempfile::Builder::new().prefix("outbox-kafka-").tempdir()?,
            port: Port::take()?,
            controller_port: Port::take()?,
            process: Running::default(),
        };
        kafka.format()?;
        kafka.restart()?;
        Ok(kafka)
    }

    /// `host:port`, the same after a restart.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
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
    /// serves.
    ///
    /// # Errors
    /// The server's own words, when it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop()?;
        let log = self.log();
        // The log of the run before says "started" too.
        let before = fs::metadata(&log).map_or(0, |data| data.len());
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        let mut command = java_with_log(&self.jars, self.folder.path());
        command.args(self.machine);
        command.arg("kafka.Kafka").arg(self.settings_file());
        let mut process = Process::start(&mut command, &log)?;
        process.wait_until(&log, || {
            let text = fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(text.get(before..).unwrap_or_default()).contains(STARTED)
        })?;
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

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// One of Kafka's own programs, by the name of its class, as
    /// `org.apache.kafka.tools.consumer.ConsoleConsumer`; or a single Java source file that uses
    /// the jars.
    ///
    /// # Errors
    /// No jars; the message names the variable to set.
    pub fn tool(class_or_source: &str) -> io::Result<Command> {
        let mut command = java(&find::kafka()?);
        command.arg("-XX:TieredStopAtLevel=1").arg(class_or_source);
        Ok(command)
    }

    /// Runs one of Kafka's own programs on these brokers, `host:port`, and returns what it printed. It takes
    /// some seconds.
    ///
    /// # Errors
    /// As [`tool`](Self::tool), or the program's own words.
    pub fn ask(brokers: &str, class: &str, arguments: &[&str]) -> io::Result<String> {
        let mut tool = Self::tool(class)?;
        tool.args(["--bootstrap-server", brokers]).args(arguments);
        said(&mut tool)
    }

    /// Sends so many records of 350 bytes by Kafka's `ProducerPerformance`, acknowledged by all, with
    /// these properties (`linger.ms=5`) of the Java client, and returns how many a second it told.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), or no rate in what it printed.
    pub fn producer_performance(
        brokers: &str,
        topic: &str,
        records: usize,
        properties: &[&str],
    ) -> io::Result<f64> {
        let mut tool = java(&find::kafka()?);
        tool.arg("org.apache.kafka.tools.ProducerPerformance")
            .args(["--bootstrap-server", brokers, "--topic", topic])
            .args(["--num-records", &records.to_string()])
            .args(["--record-size", "350", "--throughput", "-1"])
            .args(["--command-property", "acks=all"])
            .args(properties);
        let said = said(&mut tool)?;
        // As `200000 records sent, 147000.5 records/sec (49.07 MB/sec), …`.
        let rate = said.lines().rev().find_map(|line| {
            let (_, behind) = line.split_once(" records sent, ")?;
            behind.split(' ').next()?.parse().ok()
        });
        rate.ok_or_else(|| io::Error::other(format!("no rate: {said}")))
    }

    fn settings_file(&self) -> PathBuf {
        self.folder.path().join("server.properties")
    }

    /// Writes the settings and prepares the data folder.
    fn format(&self) -> io::Result<()> {
        let folder = self.folder.path();
        fs::write(folder.join("log4j2.properties"), LOG_SETTINGS)?;
        let (port, controller) = (self.port.address(), self.controller_port.address());
        let data = folder.join("data");
        let mut text = format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@{controller}\n\
             listeners=PLAINTEXT://{port},CONTROLLER://{controller}\n\
             advertised.listeners=PLAINTEXT://{port}\n\
             controller.listener.names=CONTROLLER\n\
             inter.broker.listener.name=PLAINTEXT\n\
             log.dirs={}\n\
             num.partitions=1\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             transaction.state.log.num.partitions=1\n\
             group.initial.rebalance.delay.ms=0\n\
             auto.create.topics.enable=false\n\
             log.cleaner.dedupe.buffer.size=16777216\n",
            data.display()
        );
        let protocols = "listener.security.protocol.map";
        if !self.settings.iter().any(|(name, _)| name == protocols) {
            text.push_str(protocols);
            text.push_str("=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n");
        }
        for (name, value) in &self.settings {
            text.extend([name.as_str(), "=", value, "\n"]);
        }
        fs::write(self.settings_file(), text)?;
        let mut tool = java_with_log(&self.jars, folder);
        tool.args(["-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool"]);
        tool.args(["format", "-t", CLUSTER_ID, "-c"]);
        let output = tool
            .arg(self.settings_file())
            .args(&self.format_arguments)
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let words = [output.stdout, output.stderr].concat();
        let words = String::from_utf8_lossy(&words).trim().to_owned();
        Err(io::Error::other(format!(
            "the data folder can't be formatted: {words}"
        )))
    }
}

/// What a program printed.
fn said(tool: &mut Command) -> io::Result<String> {
    let output = tool.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{tool:?}: {said} {complaint}")))
}

fn java(jars: &Path) -> Command {
    let mut command = Command::new("java");
    command.arg("-cp").arg(jars.join("*"));
    command
}

/// For programs that write the server's log.
fn java_with_log(jars: &Path, folder: &Path) -> Command {
    let mut command = java(jars);
    let settings = folder.join("log4j2.properties");
    command.arg(format!("-Dlog4j2.configurationFile={}", settings.display()));
    command
}
