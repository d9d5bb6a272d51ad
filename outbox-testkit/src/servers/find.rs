//! Where the servers' programs, and the library for their clock, are.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use super::amqp;

/// The Redis server: `OUTBOX_TEST_REDIS_BIN` (a program), else `redis-server` on the path.
pub(super) fn redis() -> io::Result<PathBuf> {
    named("OUTBOX_TEST_REDIS_BIN")
        .or_else(|| on_path("redis-server"))
        .filter(|program| program.is_file())
        .ok_or_else(|| missing("redis-server", "OUTBOX_TEST_REDIS_BIN", "the program"))
}

/// The folder with Kafka's jars: `OUTBOX_TEST_KAFKA_BIN`. No package brings them, so that no place
/// is the usual one. `java` must be on the path.
pub(super) fn kafka() -> io::Result<PathBuf> {
    if on_path("java").is_none() {
        let message = "java was not found; install version 17 or newer";
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    named("OUTBOX_TEST_KAFKA_BIN")
        .filter(|folder| folder.is_dir())
        .ok_or_else(|| {
            missing(
                "Kafka",
                "OUTBOX_TEST_KAFKA_BIN",
                "the folder of its jars (`cargo xtask services up --only kafka` fetches them)",
            )
        })
}

/// The NATS server: `OUTBOX_TEST_NATS_BIN` (a program), else `nats-server` on the path.
pub(super) fn nats() -> io::Result<PathBuf> {
    named("OUTBOX_TEST_NATS_BIN")
        .or_else(|| on_path("nats-server"))
        .filter(|program| program.is_file())
        .ok_or_else(|| missing("nats-server", "OUTBOX_TEST_NATS_BIN", "the program"))
}

/// The folder with `initdb` and `postgres`: `OUTBOX_TEST_POSTGRES_BIN`, else Debian's newest, else
/// the path.
pub(super) fn postgres() -> io::Result<PathBuf> {
    let complete =
        |folder: &PathBuf| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    let found = match named("OUTBOX_TEST_POSTGRES_BIN") {
        Some(folder) => Some(folder).filter(complete),
        None => debian(Path::new("/usr/lib/postgresql"))
            .into_iter()
            .chain(on_path("postgres").and_then(|program| Some(program.parent()?.to_owned())))
            .find(complete),
    };
    found.ok_or_else(|| {
        missing(
            "PostgreSQL",
            "OUTBOX_TEST_POSTGRES_BIN",
            "the folder of initdb",
        )
    })
}

/// The folder with `rabbitmq-server` and `rabbitmqctl`: that of `OUTBOX_TEST_AMQP_BIN` (the server's
/// program), else Debian's.
pub(super) fn rabbitmq() -> io::Result<PathBuf> {
    named("OUTBOX_TEST_AMQP_BIN")
        .map_or_else(
            || Some(PathBuf::from(amqp::DEBIAN)),
            |program| Some(program.parent()?.to_owned()),
        )
        .filter(|folder| amqp::is_complete(folder))
        .ok_or_else(|| {
            let what = "RabbitMQ (rabbitmq-server and rabbitmqctl themselves, not their wrappers)";
            missing(what, "OUTBOX_TEST_AMQP_BIN", "rabbitmq-server")
        })
}

/// Erlang's port mapper; it comes with Erlang.
pub(super) fn epmd() -> io::Result<PathBuf> {
    on_path("epmd").ok_or_else(|| missing("epmd (of Erlang)", "PATH", "one that has it"))
}

/// The library that fakes the clock of many threads: `OUTBOX_TEST_FAKETIME_LIB`, else Debian's.
pub(super) fn faketime() -> io::Result<PathBuf> {
    const VARIABLE: &str = "OUTBOX_TEST_FAKETIME_LIB";
    let debian = || {
        // A folder for each architecture.
        let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
        libraries.find(|library| library.is_file())
    };
    named(VARIABLE)
        .or_else(debian)
        .filter(|library| library.is_file())
        .ok_or_else(|| {
            let what = "libfaketime (libfaketimeMT.so.1 of the package libfaketime)";
            missing(what, VARIABLE, "the library")
        })
}

fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from)
}

fn missing(what: &str, variable: &str, value: &str) -> io::Error {
    let message = format!("{what} was not found; install it, or set {variable} to {value}");
    io::Error::new(io::ErrorKind::NotFound, message)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Debian keeps each major version in a folder of its own; the newest comes first.
fn debian(parent: &Path) -> Vec<PathBuf> {
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
