//! The real servers that the tests run on.
//!
//! Each service comes by the first way that works: its URL in the environment, else programs
//! installed here (by apt-get where that is possible) and a private server on a free loopback
//! port. A service that cannot be had is an error: a suite that quietly did not run proves
//! nothing. A further service is one more implementation of [`Service`] in [`ALL`].

pub(crate) mod cli;
mod install;
mod place;
mod postgres;
mod redis;
pub(crate) mod state;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::command::{say, show};
use crate::interrupt;
use crate::process::Identity;
use crate::services::state::{Lock, Running, State};

/// How long a server may take to answer.
const START_LIMIT: Duration = Duration::from_mins(1);
/// How long a server may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// The services, in the order in which they start.
pub(crate) const ALL: &[&dyn Service] = &[&postgres::Postgres, &redis::Redis];

/// One kind of server.
pub(crate) trait Service: Sync {
    /// What `--only` and the tables call it.
    fn name(&self) -> &'static str;

    /// The variable with the server's URL: read from the environment, and set for the tests.
    fn url_variable(&self) -> &'static str;

    /// The variable that tells tests which start servers themselves where the programs are.
    /// Set in the environment, it is the only place that is looked at.
    fn program_variable(&self) -> &'static str;

    /// The value of [`Service::program_variable`].
    fn program(&self, programs: &Programs) -> PathBuf;

    /// The Debian packages that bring the programs.
    fn packages(&self) -> &'static [&'static str];

    /// Finds the server and its client, or says which program is missing.
    fn find(&self) -> Result<Programs>;

    /// Makes a new server below `folder` and starts it on the port, logging to `log`.
    fn start(&self, programs: &Programs, folder: &Path, port: u16, log: &Path) -> Result<Child>;

    /// The URL of a server started by [`Service::start`].
    fn url(&self, port: u16) -> String;

    /// The version that the server at the URL answers with. An error while it is not ready.
    fn version(&self, programs: &Programs, url: &str) -> Result<String>;

    /// The signal for a prompt and clean stop.
    fn stop_signal(&self) -> Signal;
}

/// The folder of a service's programs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) folder: PathBuf,
}

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) service: &'static str,
    pub(crate) url: String,
    pub(crate) version: String,
    /// The process, unless the URL came from the environment.
    pub(crate) process: Option<Identity>,
    /// Whether the call that gave this value started it.
    pub(crate) started: bool,
    /// What the tests get in their environment.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// The services with these names; all when there are none.
pub(crate) fn select(names: &[String]) -> Result<Vec<&'static dyn Service>> {
    for name in names {
        if !ALL.iter().any(|service| service.name() == name) {
            let known: Vec<_> = ALL.iter().map(|service| service.name()).collect();
            bail!(
                "there is no service `{name}`; there are {}",
                known.join(", ")
            );
        }
    }
    let wanted = |name| names.is_empty() || names.iter().any(|wanted| wanted == name);
    Ok(ALL
        .iter()
        .copied()
        .filter(|service| wanted(service.name()))
        .collect())
}

/// Makes every one of the services answer. What runs already stays as it is, so calling it again
/// changes nothing. When one fails, those that this call started are stopped again.
pub(crate) fn up(folder: &Path, services: &[&'static dyn Service]) -> Result<Vec<Server>> {
    let _lock = Lock::take(folder)?;
    let mut servers = vec![];
    for service in services {
        let url = std::env::var(service.url_variable()).ok();
        match up_one(folder, *service, url) {
            Ok(server) => servers.push(server),
            Err(error) => {
                let started = servers.iter().filter(|server: &&Server| server.started);
                let names: Vec<_> = started.map(|server| server.service.to_owned()).collect();
                if !names.is_empty() {
                    stop(folder, &select(&names)?)?;
                }
                return Err(error.context(format!("no {} to test with", service.name())));
            }
        }
    }
    Ok(servers)
}

/// `url` is the one in the environment, if any.
fn up_one(folder: &Path, service: &'static dyn Service, url: Option<String>) -> Result<Server> {
    let programs = install::ensure(service)?;
    let server = |url: String, version, process, started| Server {
        service: service.name(),
        variables: variables(service, &programs, &url),
        url,
        version,
        process,
        started,
    };

    if let Some(url) = url {
        let version = service.version(&programs, &url).with_context(|| {
            format!(
                "the server of {0} does not answer: start it, or unset {0} to have one started",
                service.url_variable()
            )
        })?;
        return Ok(server(url, version, None, false));
    }

    let mut state = State::read(folder)?;
    if let Some(running) = state.services.get(service.name()) {
        if running.process.is_alive() {
            let version = service.version(&programs, &running.url)?;
            return Ok(server(
                running.url.clone(),
                version,
                Some(running.process),
                false,
            ));
        }
        place::remove(&running.folder)?;
        state.services.remove(service.name());
        state.write(folder)?;
    }

    let (running, version) = start(folder, service, &programs, &mut state)?;
    Ok(server(running.url, version, Some(running.process), true))
}

/// What the tests get in their environment.
fn variables(service: &dyn Service, programs: &Programs, url: &str) -> Vec<(&'static str, String)> {
    let program = service.program(programs).display().to_string();
    vec![
        (service.url_variable(), url.to_owned()),
        (service.program_variable(), program),
    ]
}

/// Starts a new server and waits until it answers. It is in the state file from its first moment.
fn start(
    folder: &Path,
    service: &'static dyn Service,
    programs: &Programs,
    state: &mut State,
) -> Result<(Running, String)> {
    let port = free_port()?;
    let place = place::make(folder, &format!("{}-{port}", service.name()))?;
    let log = folder.join(format!("{}.log", service.name()));
    let mut child = service.start(programs, &place, port, &log)?;
    let running = Running {
        url: service.url(port),
        process: Identity::of(i32::try_from(child.id()).context("a pid beyond i32")?)?,
        folder: place,
    };
    state
        .services
        .insert(service.name().to_owned(), running.clone());
    state.write(folder)?;

    let deadline = Instant::now() + START_LIMIT;
    let problem = loop {
        match service.version(programs, &running.url) {
            Ok(version) => return Ok((running, version)),
            Err(error) if Instant::now() >= deadline => break error,
            Err(_) => {}
        }
        if let Some(status) = child.try_wait().context("cannot wait for the server")? {
            break anyhow::anyhow!("the server ended at its start: {status}");
        }
        if interrupt::requested() {
            break anyhow::anyhow!("interrupted");
        }
        std::thread::sleep(POLL);
    };
    stop_one(service, &running)?;
    state.services.remove(service.name());
    state.write(folder)?;
    Err(problem.context(format!("the end of its log:\n{}", place::last_lines(&log))))
}

/// Stops those of the services that [`up`] started, and removes their data; the logs stay.
/// Gives the names of those that were running. Calling it again changes nothing.
pub(crate) fn down(folder: &Path, services: &[&'static dyn Service]) -> Result<Vec<&'static str>> {
    let _lock = Lock::take(folder)?;
    stop(folder, services)
}

/// The caller holds the lock.
fn stop(folder: &Path, services: &[&'static dyn Service]) -> Result<Vec<&'static str>> {
    let mut state = State::read(folder)?;
    let mut stopped = vec![];
    for service in services.iter().rev() {
        if let Some(running) = state.services.get(service.name()) {
            if running.process.is_alive() {
                stopped.push(service.name());
            }
            stop_one(*service, running)?;
            state.services.remove(service.name());
            state.write(folder)?;
        }
    }
    Ok(stopped)
}

fn stop_one(service: &dyn Service, running: &Running) -> Result<()> {
    running
        .process
        .stop(service.stop_signal(), STOP_LIMIT)
        .with_context(|| format!("cannot stop {}", service.name()))?;
    place::remove(&running.folder)
}

/// A port that was free a moment ago. Another program may take it before the server does; the
/// server then ends with an error that says so.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free loopback port")?;
    Ok(listener
        .local_addr()
        .context("no free loopback port")?
        .port())
}

/// Starts a server as a child that outlives this process: no terminal, output to the log.
fn spawn(command: &mut std::process::Command, log: &Path) -> Result<Child> {
    use std::os::unix::process::CommandExt;
    let file =
        std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot share the log")?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run `{}`", show(command)))
}

/// Stops what a run started when it ends, however it ends.
pub(crate) struct Started {
    folder: PathBuf,
    pub(crate) servers: Vec<Server>,
    keep: bool,
}

impl Started {
    /// [`up`], for the time of one run.
    pub(crate) fn up(
        folder: PathBuf,
        services: &[&'static dyn Service],
        keep: bool,
    ) -> Result<Self> {
        let servers = up(&folder, services)?;
        for server in &servers {
            let how = match (server.process, server.started) {
                (None, _) => "as the environment says",
                (Some(_), true) => "started",
                (Some(_), false) => "already up",
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

#[cfg(test)]
mod tests;
