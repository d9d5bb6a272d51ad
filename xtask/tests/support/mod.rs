//! Small workspaces, and the tool in them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use tempfile::TempDir;

/// A workspace with one crate. `outbox-core` needs no server, `outbox-redis` needs Redis.
pub(crate) fn workspace(package: &str, library: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "Cargo.toml",
        &format!("[workspace]\nresolver = \"3\"\nmembers = [\"{package}\"]\n"),
    );
    write(
        &format!("{package}/Cargo.toml"),
        &format!("[package]\nname = \"{package}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n"),
    );
    write(&format!("{package}/src/lib.rs"), library);
    root
}

pub(crate) fn xtask(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(arguments)
        .current_dir(root)
        .env("CARGO_MANIFEST_DIR", root);
    // The servers of the run that this test is part of are not its own.
    command
        .env_remove("OUTBOX_TEST_AMQP_URL")
        .env_remove("OUTBOX_TEST_REDIS_URL")
        .env_remove("OUTBOX_TEST_POSTGRES_URL")
        .env_remove("OUTBOX_SERVICES_VIA");
    command
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_NET_OFFLINE", "true");
    command
}

/// Asks it to end.
pub(crate) fn terminate(child: &Child) {
    let status = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(status.success());
}
