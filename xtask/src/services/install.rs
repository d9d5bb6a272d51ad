//! Programs that are missing, by the package manager where that is possible.

use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::command::{self, say};
use crate::services::{Programs, Service};

/// The programs of a service, installed first when they are missing.
pub(crate) fn ensure(service: &dyn Service) -> Result<Programs> {
    let Err(missing) = service.find() else {
        return service.find();
    };
    if std::env::var_os(service.program_variable()).is_some() {
        // Another program than the one that was asked for would be a surprise.
        return Err(missing);
    }
    let packages = service.packages().join(" ");
    if !geteuid().is_root() || command::on_path("apt-get").is_none() {
        bail!("{missing:#}; install it (on Debian: apt-get install {packages})");
    }
    say(&format!("{missing:#}: installing {packages}"));
    command::run(apt_get().arg("update"))?;
    let mut install = apt_get();
    install
        .args(["install", "-y", "--no-install-recommends"])
        .args(service.packages());
    command::run(&mut install)?;
    service
        .find()
        .with_context(|| format!("{packages} is installed"))
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    apt_get.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    // Tells invoke-rc.d that this is not the time to start the packages' own servers.
    apt_get.env("RUNLEVEL", "1");
    apt_get
}
