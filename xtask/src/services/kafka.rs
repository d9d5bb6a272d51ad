//! Kafka, from its jars: one node that is broker and controller.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::command::{self, say};
use crate::services::{Container, Programs, Service, install, spawn};
use crate::workspace::Workspace;

const JARS_VARIABLE: &str = "OUTBOX_TEST_KAFKA_BIN";
const VERSION: &str = "4.4.0";
/// The broker's jar; its name tells the version.
const BROKER: &str = "kafka_2.13-";
/// What runs and fetches the jars.
const JAVA: &[&str] = &["java", "javac", "mvn"];
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// A broker tells its clients where it is, so Docker can't choose the port.
const CONTAINER_PORT: u16 = 19092;

/// Without the last, which must have log4j-core's version, nothing is logged.
const PROJECT: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>outbox</groupId><artifactId>kafka-jars</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.5</version></dependency>
</dependencies></project>
"#;

const LOG_SETTINGS: &str = "\
rootLogger.level=WARN
rootLogger.appenderRef.stdout.ref=STDOUT
appender.console.type=Console
appender.console.name=STDOUT
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
";

pub(crate) struct Kafka;

impl Service for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn url_variable(&self) -> &'static str {
        "OUTBOX_TEST_KAFKA_URL"
    }

    fn program_variable(&self) -> &'static str {
        JARS_VARIABLE
    }

    /// The folder of the jars: there is no one program.
    fn program(&self, programs: &Programs) -> PathBuf {
        programs.folder.clone()
    }

    fn packages(&self) -> &'static [&'static str] {
        &["default-jdk-headless", "maven"]
    }

    /// Java by the packages, Kafka by Maven.
    fn install(&self, missing: &str) -> Result<()> {
        if JAVA.iter().any(|name| command::on_path(name).is_none()) {
            install::packages(self.packages(), missing)?;
        }
        let jars = jars()?;
        if has_broker(&jars) {
            return Ok(());
        }
        say(&format!("{missing}: fetching Kafka {VERSION}"));
        let folder = jars.with_extension("new");
        fs::create_dir_all(&folder).context("cannot make the folder for Kafka")?;
        let project = folder.join("pom.xml");
        fs::write(&project, PROJECT).context("cannot write the project for Maven")?;
        let new = folder.join("jars");
        let mut maven = Command::new("mvn");
        maven.args(["-B", "-q", "-f"]).arg(&project).arg(PLUGIN);
        maven.arg(format!("-DoutputDirectory={}", new.display()));
        maven.arg("-DincludeScope=runtime");
        command::run(&mut maven)?;
        // Whole or not at all.
        fs::rename(&new, &jars).context("cannot put the jars in their place")?;
        fs::remove_dir_all(&folder).context("cannot remove what served to fetch")
    }

    fn find(&self) -> Result<Programs> {
        for program in ["java", "javac"] {
            ensure!(
                command::on_path(program).is_some(),
                "{program} is not installed"
            );
        }
        let folder = match std::env::var_os(JARS_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => jars()?,
        };
        ensure!(has_broker(&folder), "Kafka is not installed");
        Ok(Programs { folder })
    }

    fn start(&self, programs: &Programs, folder: &Path, port: u16, log: &Path) -> Result<Child> {
        let settings = folder.join("server.properties");
        let log_settings = folder.join("log4j2.properties");
        fs::write(&settings, server_settings(folder, port, free_port()?))
            .and_then(|()| fs::write(&log_settings, LOG_SETTINGS))
            .context("cannot write Kafka's settings")?;
        let java = || {
            let mut java = Command::new("java");
            java.arg(format!(
                "-Dlog4j2.configurationFile={}",
                log_settings.display()
            ));
            java.arg("-cp").arg(programs.folder.join("*"));
            java.arg("-XX:TieredStopAtLevel=1");
            java
        };
        let mut format = java();
        format.args(["kafka.tools.StorageTool", "format", "-t"]);
        format.args(["4Ok7QBMKQaKPfAbaCvNprA", "-c"]).arg(&settings);
        command::output(&mut format)?;
        let mut server = java();
        server.args(["-Xms256m", "-Xmx512m", "kafka.Kafka"]);
        spawn(server.arg(&settings), log)
    }

    fn url(&self, port: u16) -> String {
        format!("kafka://127.0.0.1:{port}")
    }

    /// The broker does not tell its version; it is that of the jars, once a broker answers.
    fn version(&self, programs: &Programs, url: &str) -> Result<String> {
        let address = url.strip_prefix("kafka://").unwrap_or(url);
        ask(address.trim_end_matches('/'))?;
        let entries = fs::read_dir(&programs.folder).context("cannot read Kafka's folder")?;
        entries
            .flatten()
            .find_map(|entry| version_of(entry.file_name().to_str()?))
            .context("no jar tells Kafka's version")
    }

    fn container(&self) -> Container {
        Container {
            port: CONTAINER_PORT,
            question: &["/opt/kafka/bin/kafka-broker-api-versions.sh", "--version"],
            // The image takes its settings from the environment.
            settings: vec![],
        }
    }

    fn read_version(&self, answer: &str) -> Option<String> {
        let version = answer.split_whitespace().next()?;
        version
            .starts_with(|c: char| c.is_ascii_digit())
            .then(|| version.to_owned())
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }
}

fn jars() -> Result<PathBuf> {
    Ok(Workspace::find()?.tools_folder().join("kafka"))
}

fn has_broker(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_str().and_then(version_of).is_some())
}

fn version_of(jar: &str) -> Option<String> {
    let version = jar.strip_prefix(BROKER)?.strip_suffix(".jar")?;
    Some(version.to_owned())
}

fn server_settings(folder: &Path, port: u16, controller: u16) -> String {
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
         controller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=PLAINTEXT\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         log.dirs={}\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         transaction.state.log.num.partitions=1\n\
         group.initial.rebalance.delay.ms=0\n\
         auto.create.topics.enable=false\n\
         log.cleaner.dedupe.buffer.size=16777216\n",
        folder.join("data").display()
    )
}

/// For the controller, which nobody else asks.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free loopback port")?;
    let address = listener.local_addr().context("a port without address")?;
    Ok(address.port())
}

/// Asks for the versions of the protocol, which a broker answers first once it serves.
fn ask(address: &str) -> Result<()> {
    // Length, key 18, version 0, the id 7, no client's name.
    const QUESTION: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    let first = address.split(',').next().unwrap_or_default();
    let mut addresses = first
        .to_socket_addrs()
        .context("the URL of Kafka has not the form kafka://host:port")?;
    let address = addresses.next().context("no address of that name")?;
    let mut stream =
        TcpStream::connect_timeout(&address, ANSWER_LIMIT).context("Kafka takes no connection")?;
    stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .context("cannot limit the wait")?;
    stream
        .write_all(&QUESTION)
        .context("Kafka takes no question")?;
    let mut answer = [0; 10];
    stream
        .read_exact(&mut answer)
        .context("Kafka does not answer")?;
    if answer[4..] != [0, 0, 0, 7, 0, 0] {
        bail!("the server at that address does not answer like Kafka");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_of("kafka_2.13-4.4.0.jar").as_deref(), Some("4.4.0"));
        assert_eq!(version_of("kafka-clients-4.4.0.jar"), None);
        let answer = "4.4.0 (Commit:1234)\n";
        assert_eq!(Kafka.read_version(answer).as_deref(), Some("4.4.0"));
        assert_eq!(Kafka.read_version("error"), None);
    }

    #[test]
    fn the_project_names_the_version() {
        assert_eq!(PROJECT.matches(&format!(">{VERSION}<")).count(), 2);
    }
}
