//! RabbitMQ.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::command;
use crate::services::{Container, Programs, Service, free_port, spawn};

const SERVER_VARIABLE: &str = "OUTBOX_TEST_AMQP_BIN";
/// Debian's folder of the programs themselves: the wrappers on the path change the user and lose
/// the environment.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin";
const SERVER: &str = "rabbitmq-server";
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A full disk or a small machine must not block publishers; tests raise alarms on servers of
/// their own.
const SETTINGS: &str = "disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 2GB
";

/// Erlang's table of names (epmd) lives and dies with the node: the shell is the parent of both.
const NODE_WITH_NAMES: &str = r#"
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & names=$!
"$0" & node=$!
trap 'kill -KILL $node $names 2>/dev/null' TERM INT
wait $node; code=$?
kill $names 2>/dev/null
wait
exit $code
"#;

pub(crate) struct Amqp;

impl Service for Amqp {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn url_variable(&self) -> &'static str {
        "OUTBOX_TEST_AMQP_URL"
    }

    fn program_variable(&self) -> &'static str {
        SERVER_VARIABLE
    }

    fn program(&self, programs: &Programs) -> PathBuf {
        programs.folder.join(SERVER)
    }

    fn packages(&self) -> &'static [&'static str] {
        &["rabbitmq-server"]
    }

    fn find(&self) -> Result<Programs> {
        let server = match std::env::var_os(SERVER_VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => Path::new(DEBIAN).join(SERVER),
        };
        let folder = server
            .parent()
            .context("rabbitmq-server is in no folder")?
            .to_owned();
        for program in [SERVER, "rabbitmqctl"] {
            ensure!(
                folder.join(program).is_file(),
                "RabbitMQ is not installed: {} has no {program}",
                folder.display()
            );
        }
        command::on_path("epmd").context("Erlang's epmd is not on the path")?;
        Ok(Programs { folder })
    }

    fn start(&self, programs: &Programs, folder: &Path, port: u16, log: &Path) -> Result<Child> {
        let path = |name: &str| folder.join(name);
        let write = |name: &str, text: &str| {
            fs::write(path(name), text).with_context(|| format!("cannot write {name}"))
        };
        for name in ["home", "data", "log"] {
            fs::create_dir(path(name)).with_context(|| format!("cannot make {name}"))?;
        }
        let listen = format!("listeners.tcp.1 = 127.0.0.1:{port}\n");
        let logging = "log.console = true\nlog.file = false\n";
        write("rabbitmq.conf", &format!("{listen}{SETTINGS}{logging}"))?;
        write("enabled_plugins", "[].")?;

        let mut server = Command::new("sh");
        server
            .args(["-c", NODE_WITH_NAMES])
            .arg(self.program(programs));
        server
            .env("HOME", path("home"))
            .env("LANG", "C.UTF-8")
            .env("ERL_EPMD_PORT", free_port()?.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("outbox-{port}@localhost"))
            .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
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
        spawn(&mut server, log)
    }

    fn url(&self, port: u16) -> String {
        format!("amqp://127.0.0.1:{port}/%2f")
    }

    fn version(&self, _: &Programs, url: &str) -> Result<String> {
        let start = first_frame(url)?;
        told_version(&start).context("the server tells no version")
    }

    fn container(&self) -> Container {
        Container {
            port: 5672,
            question: &["rabbitmqctl", "version"],
            settings: vec![],
        }
    }

    fn read_version(&self, answer: &str) -> Option<String> {
        let version = answer.lines().next()?.trim();
        version
            .starts_with(|first: char| first.is_ascii_digit())
            .then(|| version.to_owned())
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }
}

/// What the server says first to whoever opens the protocol, before it asks for a password.
fn first_frame(url: &str) -> Result<Vec<u8>> {
    let rest = url
        .strip_prefix("amqp://")
        .context("the URL is not amqp://")?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let address = authority
        .rsplit_once('@')
        .map_or(authority, |(_, address)| address);
    let mut stream = TcpStream::connect(address).context("cannot connect to RabbitMQ")?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(b"AMQP\0\0\x09\x01")?;
    // Type, channel, length.
    let mut head = [0; 7];
    stream
        .read_exact(&mut head)
        .context("RabbitMQ does not answer")?;
    ensure!(head[0] == 1, "the server does not answer like RabbitMQ");
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    ensure!(
        length < 64 << 10,
        "the server does not answer like RabbitMQ"
    );
    let mut frame = vec![0; length as usize];
    stream
        .read_exact(&mut frame)
        .context("RabbitMQ does not answer")?;
    Ok(frame)
}

/// The text under `version` in the table of the server's properties.
fn told_version(frame: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"\x07versionS";
    let at = frame.windows(NAME.len()).position(|part| part == NAME)?;
    let rest = &frame[at + NAME.len()..];
    let length = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let text = rest.get(4..4 + length)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_first_frame() {
        let frame = b"\0\x0a\0\x0a\0\x09\0\0\0\x20\x07productS\0\0\0\x01x\x07versionS\0\0\0\x063.10.8\x05other";
        assert_eq!(told_version(frame).as_deref(), Some("3.10.8"));
        assert_eq!(told_version(b"\x07versionS\0\0\0\x09short"), None);
        assert_eq!(told_version(b""), None);
        assert_eq!(Amqp.read_version("3.13.7\n").as_deref(), Some("3.13.7"));
        assert_eq!(Amqp.read_version("Error: no node\n"), None);
    }
}
