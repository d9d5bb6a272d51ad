//! PostgreSQL.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result};
use rustix::process::{Signal, geteuid};

use crate::command;
use crate::services::{Container, Programs, Service, spawn};

/// PostgreSQL refuses to run as root; Debian's package makes this user.
const USER: &str = "postgres";

/// The programs that are used here or by the tests.
const NEEDED: &[&str] = &["initdb", "postgres", "psql"];

const VERSION_QUESTION: &str = "SHOW server_version";

const FOLDER_VARIABLE: &str = "OUTBOX_TEST_POSTGRES_BIN";

pub(crate) struct Postgres;

impl Service for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn url_variable(&self) -> &'static str {
        "OUTBOX_TEST_POSTGRES_URL"
    }

    fn program_variable(&self) -> &'static str {
        FOLDER_VARIABLE
    }

    fn program(&self, programs: &Programs) -> PathBuf {
        programs.folder.clone()
    }

    fn packages(&self) -> &'static [&'static str] {
        &["postgresql", "postgresql-contrib"]
    }

    fn find(&self) -> Result<Programs> {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
            let folder = PathBuf::from(folder);
            let missing = missing_in(&folder);
            anyhow::ensure!(
                missing.is_empty(),
                "{FOLDER_VARIABLE} is {}, which has no {}",
                folder.display(),
                missing.join(", "),
            );
            return Ok(Programs { folder });
        }
        let on_path = command::on_path("initdb").and_then(|file| Some(file.parent()?.to_owned()));
        newest_first(Path::new("/usr/lib/postgresql"))
            .into_iter()
            .chain(on_path)
            .find(|folder| missing_in(folder).is_empty())
            .map(|folder| Programs { folder })
            .context("PostgreSQL is not installed")
    }

    fn start(&self, programs: &Programs, folder: &Path, port: u16, log: &Path) -> Result<Child> {
        let data = folder.join("data");
        fs::create_dir(&data).with_context(|| format!("cannot make {}", data.display()))?;
        if geteuid().is_root() {
            let id = |option| -> Result<u32> {
                let text = command::output(Command::new("id").args([option, USER]))?;
                text.trim().parse().context("`id` printed no number")
            };
            chown(&data, Some(id("-u")?), Some(id("-g")?))
                .with_context(|| format!("cannot give {} to {USER}", data.display()))?;
        }
        let mut initdb = unprivileged(&programs.folder.join("initdb"));
        initdb.arg("-D").arg(&data);
        initdb.args([
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-A",
            "trust",
        ]);
        command::output(&mut initdb)?;
        ask_for_passwords(&data.join("pg_hba.conf"))?;

        let mut server = unprivileged(&programs.folder.join("postgres"));
        server.arg("-D").arg(&data);
        let port = port.to_string();
        let place = [
            ("port", port.as_str()),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
        ];
        for (name, value) in place.iter().chain(SETTINGS) {
            server.arg("-c").arg(format!("{name}={value}"));
        }
        spawn(&mut server, log)
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    fn version(&self, programs: &Programs, url: &str) -> Result<String> {
        let mut psql = Command::new(programs.folder.join("psql"));
        // A URL without its password in it must be an error here, not a question.
        psql.args(["-XAtw", "-c", VERSION_QUESTION, "-d", url]);
        psql.env("PGCONNECT_TIMEOUT", "5");
        // The error does not repeat the command line: it has the password.
        let output = psql.output().context("cannot run psql")?;
        anyhow::ensure!(
            output.status.success(),
            "psql: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        self.read_version(&String::from_utf8_lossy(&output.stdout))
            .context("psql printed no version")
    }

    fn container(&self) -> Container {
        Container {
            port: 5432,
            question: &["psql", "-XAtw", "-U", "postgres", "-c", VERSION_QUESTION],
            settings: SETTINGS
                .iter()
                .map(|(name, value)| vec!["-c".to_owned(), format!("{name}={value}")])
                .collect(),
        }
    }

    fn read_version(&self, answer: &str) -> Option<String> {
        answer.split_whitespace().next().map(str::to_owned)
    }

    /// The "fast" shutdown: sessions are ended, the data is left clean.
    fn stop_signal(&self) -> Signal {
        Signal::INT
    }
}

/// Lets the tests see a wrong password: members of this role must give theirs, everybody else is
/// trusted as initdb says. The first line that fits counts, and a role that does not exist fits
/// nobody.
fn ask_for_passwords(file: &Path) -> Result<()> {
    let trusting = fs::read_to_string(file).context("initdb made no pg_hba.conf")?;
    let rules = format!("host all +outbox_test_password all scram-sha-256\n{trusting}");
    fs::write(file, rules).with_context(|| format!("cannot write {}", file.display()))
}

/// Given at the start rather than in a file, so that the log shows them.
const SETTINGS: &[(&str, &str)] = &[
    ("wal_level", "logical"),
    ("max_wal_senders", "10"),
    ("max_replication_slots", "10"),
    ("max_connections", "200"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "2GB"),
    // Tests look at the statements and transactions of other sessions.
    ("track_activities", "on"),
    ("shared_preload_libraries", "pg_stat_statements"),
    // The tests kill servers, and the benchmarks measure commits that last.
    ("fsync", "on"),
    ("synchronous_commit", "on"),
];

/// The program as [`USER`] when this process is root, from a folder that everybody can enter.
fn unprivileged(program: &Path) -> Command {
    let mut command = if geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", USER, "--regid", USER, "--clear-groups"])
            .arg(program);
        command.env("HOME", "/nonexistent");
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/").env("LC_ALL", "C.UTF-8");
    command
}

fn missing_in(folder: &Path) -> Vec<&'static str> {
    NEEDED
        .iter()
        .copied()
        .filter(|program| !folder.join(program).is_file())
        .collect()
}

/// Debian keeps each major version in a folder of its own.
fn newest_first(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    versions
        .into_iter()
        .rev()
        .map(|(_, folder)| folder)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_comes_first_by_number() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["9", "15", "common"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let expected = ["15", "9"].map(|name| parent.path().join(name).join("bin"));
        assert_eq!(newest_first(parent.path()), expected);
        assert!(newest_first(&parent.path().join("none")).is_empty());
    }

    #[test]
    fn folder_without_a_needed_program_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(missing_in(folder.path()), NEEDED);
        for program in NEEDED {
            fs::write(folder.path().join(program), "").unwrap();
        }
        assert!(missing_in(folder.path()).is_empty());
    }
}
