//! Programs and libraries that are missing, by the package manager where that is possible.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::command::{self, say};
use crate::services::{Programs, Service};

/// What a test preloads into a server or program whose clock is to be wrong.
const CLOCK_VARIABLE: &str = "OUTBOX_TEST_FAKETIME_LIB";

/// The programs of a service, installed first when they are missing.
pub(crate) fn ensure(service: &dyn Service) -> Result<Programs> {
    let Err(missing) = service.find() else {
        return service.find();
    };
    if std::env::var_os(service.program_variable()).is_some() {
        // Another program than the one that was asked for would be a surprise.
        return Err(missing);
    }
    service.install(&format!("{missing:#}"))?;
    service
        .find()
        .with_context(|| format!("{} is installed", service.name()))
}

/// The library that fakes clocks, installed first when it is missing. Tests find it by themselves.
pub(crate) fn ensure_clock() -> Result<()> {
    if std::env::var_os(CLOCK_VARIABLE).is_some() || has_clock(Path::new("/usr/lib")) {
        return Ok(());
    }
    packages(&["libfaketime"], "libfaketime is not installed")
}

/// Debian has a folder of libraries for each architecture.
fn has_clock(libraries: &Path) -> bool {
    let mut folders = fs::read_dir(libraries).into_iter().flatten().flatten();
    folders.any(|folder| folder.path().join("faketime/libfaketimeMT.so.1").is_file())
}

/// Installs Debian packages; `missing` says what for.
pub(super) fn packages(packages: &[&str], missing: &str) -> Result<()> {
    let names = packages.join(" ");
    if !geteuid().is_root() || command::on_path("apt-get").is_none() {
        bail!("{missing}; install it (on Debian: apt-get install {names})");
    }
    say(&format!("{missing}: installing {names}"));
    command::run(apt_get().arg("update"))?;
    let mut install = apt_get();
    install
        .args(["install", "-y", "--no-install-recommends"])
        .args(packages);
    command::run(&mut install)
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    apt_get.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    // Tells invoke-rc.d that this is not the time to start the packages' own servers.
    apt_get.env("RUNLEVEL", "1");
    apt_get
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_library_is_found_in_the_folder_of_any_architecture() {
        let libraries = tempfile::tempdir().unwrap();
        let folder = libraries.path().join("an-architecture/faketime");
        fs::create_dir_all(&folder).unwrap();
        assert!(!has_clock(libraries.path()));
        fs::write(folder.join("libfaketimeMT.so.1"), "").unwrap();
        assert!(has_clock(libraries.path()));
    }
}
