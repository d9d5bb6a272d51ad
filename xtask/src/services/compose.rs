//! Servers by Docker Compose, from the workspace's `compose.yaml`.
//!
//! Tested with a program that plays `docker`; the project has no daemon to run it against.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::command::{self, End, say, show};
use crate::services::Service;

/// The file in the root of the workspace.
pub(crate) const FILE: &str = "compose.yaml";

/// A daemon on another machine may be unreachable rather than absent.
const LOOK_LIMIT: Duration = Duration::from_secs(15);
/// The first start pulls the image.
const UP_LIMIT: Duration = Duration::from_mins(10);
/// How long a container may take until it is healthy.
const HEALTHY_SECONDS: &str = "120";
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Lines of a failed program or container that an error shows.
const LAST_LINES: usize = 20;

/// The containers of one workspace: what is needed to find them again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Project {
    name: String,
    file: PathBuf,
}

impl Project {
    /// The project of the workspace with this root, if Docker Compose can run it; the error says
    /// what is missing.
    pub(crate) fn find(root: &Path) -> Result<Self> {
        let file = root.join(FILE);
        ensure!(file.is_file(), "there is no {}", file.display());
        command::on_path("docker").context("docker is not installed")?;
        let mut info = Command::new("docker");
        // Some versions end well without a daemon, but then they know no version of it.
        let version = watched(
            info.args(["info", "--format", "{{.ServerVersion}}"]),
            LOOK_LIMIT,
        )
        .context("no Docker daemon answers")?;
        ensure!(!version.is_empty(), "no Docker daemon answers");
        watched(
            Command::new("docker").args(["compose", "version"]),
            LOOK_LIMIT,
        )
        .context("docker has no compose")?;
        // Two checkouts on one machine must not share containers.
        let mut hasher = DefaultHasher::new();
        root.hash(&mut hasher);
        Ok(Self {
            name: format!("outbox-test-{:016x}", hasher.finish()),
            file,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts the service and waits until it is healthy; a healthy one stays as it is.
    pub(crate) fn up(&self, service: &str) -> Result<()> {
        say(&format!(
            "docker compose up {service} (the first time it pulls the image)"
        ));
        let mut up = self.compose(&[
            "up",
            "--detach",
            "--wait",
            "--wait-timeout",
            HEALTHY_SECONDS,
        ]);
        watched(up.arg(service), UP_LIMIT).map(|_| ())
    }

    /// The URL of a running service for this machine, and the version that it answers with.
    pub(crate) fn ask(&self, service: &dyn Service) -> Result<(String, String)> {
        let (name, container) = (service.name(), service.container());
        let port = container.port.to_string();
        let address = command::output(&mut self.compose(&["port", name, &port]))?;
        let address: SocketAddr = address
            .trim()
            .parse()
            .ok()
            .filter(|address: &SocketAddr| address.ip().is_loopback())
            .with_context(|| {
                let address = address.trim();
                format!("{name} is published at `{address}`, not at a loopback port")
            })?;
        TcpStream::connect_timeout(&address, CONNECT_LIMIT).with_context(|| {
            format!("{name} is not at {address}: is the Docker daemon on another machine?")
        })?;
        let mut question = self.compose(&["exec", "-T", name]);
        let answer = command::output(question.args(container.question))?;
        let version = service
            .read_version(&answer)
            .with_context(|| format!("{name} told no version: {}", answer.trim()))?;
        Ok((service.url(address.port()), version))
    }

    /// The end of what the service logged.
    pub(crate) fn log(&self, service: &str) -> Result<String> {
        let lines = LAST_LINES.to_string();
        let mut logs = self.compose(&["logs", "--no-color", "--no-log-prefix", "--tail", &lines]);
        Ok(command::output(logs.arg(service))?.trim().to_owned())
    }

    /// Removes the service's container with its data; with the last one all that is the project's.
    pub(crate) fn remove(&self, service: &str, is_last: bool) -> Result<()> {
        // Not watched: it must go on after a signal, which is when it is needed.
        let mut compose = if is_last {
            self.compose(&["down", "--volumes", "--remove-orphans"])
        } else {
            self.compose(&["rm", "--stop", "--force", "--volumes", service])
        };
        command::output(&mut compose).map(|_| ())
    }

    fn compose(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        docker.args(["compose", "--project-name", &self.name, "--file"]);
        docker.arg(&self.file).args(arguments);
        docker
    }
}

/// What the program printed, standard output and error, within a time; else an error with the end
/// of it. It is stopped when this tool is asked to end.
fn watched(command: &mut Command, limit: Duration) -> Result<String> {
    let mut lines = vec![];
    let (end, _) = command::stream(command, limit, |line| lines.push(line.to_owned()))?;
    let said = || lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    let name = show(command);
    match end {
        End::Exited(status) if status.success() => Ok(lines.join("\n")),
        End::Exited(status) => bail!("`{name}` failed: {status}: {}", said()),
        End::TimedOut => bail!("`{name}` took longer than {limit:?}: {}", said()),
        End::Interrupted => bail!("`{name}` was stopped"),
    }
}
