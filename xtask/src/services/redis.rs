//! Redis.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::command;
use crate::services::{Container, Programs, Service, spawn};

const SERVER_VARIABLE: &str = "OUTBOX_TEST_REDIS_BIN";

/// Acknowledged means on the disk: tests kill the server and count what is there.
const SETTINGS: &[[&str; 2]] = &[
    ["--save", ""],
    ["--appendonly", "yes"],
    ["--appendfsync", "always"],
];

pub(crate) struct Redis;

impl Service for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn url_variable(&self) -> &'static str {
        "OUTBOX_TEST_REDIS_URL"
    }

    fn program_variable(&self) -> &'static str {
        SERVER_VARIABLE
    }

    fn program(&self, programs: &Programs) -> PathBuf {
        programs.folder.join("redis-server")
    }

    fn packages(&self) -> &'static [&'static str] {
        &["redis-server", "redis-tools"]
    }

    fn find(&self) -> Result<Programs> {
        let server = match std::env::var_os(SERVER_VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => command::on_path("redis-server").context("Redis is not installed")?,
        };
        let folder = server
            .parent()
            .context("redis-server is in no folder")?
            .to_owned();
        for program in ["redis-server", "redis-cli"] {
            ensure!(
                folder.join(program).is_file(),
                "{} has no {program}",
                folder.display()
            );
        }
        Ok(Programs { folder })
    }

    fn start(&self, programs: &Programs, folder: &Path, port: u16, log: &Path) -> Result<Child> {
        let mut server = Command::new(programs.folder.join("redis-server"));
        server.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        server.arg("--dir").arg(folder);
        server.args(SETTINGS.as_flattened());
        spawn(&mut server, log)
    }

    fn url(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/")
    }

    fn version(&self, programs: &Programs, url: &str) -> Result<String> {
        let mut client = Command::new(programs.folder.join("redis-cli"));
        client.args(["--no-auth-warning", "-u", url, "INFO", "server"]);
        // The error does not repeat the command line: it has the password.
        let output = client.output().context("cannot run redis-cli")?;
        let text = String::from_utf8_lossy(&output.stdout);
        self.read_version(&text).with_context(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            format!("redis-cli: {} {}", text.trim(), stderr.trim())
        })
    }

    fn container(&self) -> Container {
        let words = |setting: &[&str; 2]| setting.map(str::to_owned).to_vec();
        Container {
            port: 6379,
            question: &["redis-cli", "INFO", "server"],
            settings: SETTINGS.iter().map(words).collect(),
        }
    }

    fn read_version(&self, answer: &str) -> Option<String> {
        let version = answer
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"))?;
        Some(version.trim().to_owned())
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }
}
