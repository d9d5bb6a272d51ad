//! Servers for the time of one run.

use std::path::PathBuf;

use anyhow::Result;

use crate::command::say;
use crate::services::{Origin, Server, Service, Way, down, install, select, up};

/// Stops what a run started when it ends, however it ends.
pub(crate) struct Started {
    folder: PathBuf,
    pub(crate) servers: Vec<Server>,
    keep: bool,
}

impl Started {
    /// [`up`], for the time of one run, and the programs that its tests start servers from.
    pub(crate) fn up(
        folder: PathBuf,
        services: &[&'static dyn Service],
        way: &Way,
        keep: bool,
    ) -> Result<Self> {
        for service in services {
            install::ensure(*service)?;
        }
        let servers = up(&folder, services, way)?;
        for server in &servers {
            let how = match (&server.origin, server.started) {
                (Origin::Environment, _) => "as the environment says",
                (Origin::Process(_), true) => "started",
                (Origin::Compose(_), true) => "started by Docker Compose",
                (_, false) => "already up",
            };
            say(&format!("{} {} ({how})", server.service, server.version));
        }
        Ok(Self {
            folder,
            servers,
            keep,
        })
    }

    /// What the tests get in their environment.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = self.servers.iter().flat_map(|server| &server.variables);
        all.map(|(name, value)| (*name, value.as_str()))
    }

    /// Stops now, and tells whether that worked.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let started = self
            .servers
            .iter()
            .filter(|server| server.started && !self.keep);
        let names: Vec<_> = started.map(|server| server.service.to_owned()).collect();
        self.servers.clear();
        if names.is_empty() {
            return Ok(());
        }
        down(&self.folder, &select(&names)?).map(|_| ())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("error: {error:#}");
        }
    }
}
