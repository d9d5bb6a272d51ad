//! The real servers that the tests run on.
//!
//! Each service comes by the first way that works: its URL in the environment, else Docker Compose
//! where a daemon answers, else programs installed here (by apt-get where that is possible) and a
//! private server on a free loopback port. Tests that kill servers start their own and need the
//! programs whatever the shared servers come from, so test runs install them always. A service that cannot be had is an error: a suite that quietly did not run proves
//! nothing. A further service is one more implementation of [`Service`] in [`ALL`].

mod amqp;
pub(crate) mod cli;
pub(crate) mod compose;
pub(crate) mod install;
mod kafka;
mod nats;
mod place;
mod postgres;
mod redis;
mod started;
pub(crate) mod state;
mod way;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::command::{say, show};
use crate::interrupt;
use crate::process::Identity;
use crate::services::compose::Project;
pub(crate) use crate::services::started::Started;
use crate::services::state::{Lock, Running, State};
pub(crate) use crate::services::way::{Via, ViaOption, Way};

/// How long a server may take to answer.
const START_LIMIT: Duration = Duration::from_mins(1);
/// How long a server may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// The services, in the order in which they start.
pub(crate) const ALL: &[&dyn Service] = &[
    &postgres::Postgres,
    &redis::Redis,
    &nats::Nats,
    &kafka::Kafka,
    &amqp::Amqp,
];

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

    /// Brings programs that are missing, whose error is told: by the packages, unless they come in
    /// another way.
    fn install(&self, missing: &str) -> Result<()> {
        install::packages(self.packages(), missing)
    }

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

    /// What is to know of the service of this name in the workspace's `compose.yaml`.
    fn container(&self) -> Container;

    /// The version in the answer to [`Container::question`].
    fn read_version(&self, answer: &str) -> Option<String>;
}

/// A service as a container.
pub(crate) struct Container {
    /// Where it listens inside.
    pub(crate) port: u16,
    /// The program with its arguments that asks the server, inside, for its version.
    pub(crate) question: &'static [&'static str],
    /// The settings that a private server gets too, each as its words on the command line.
    pub(crate) settings: Vec<Vec<String>>,
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
    pub(crate) origin: Origin,
    /// Whether the call that gave this value started it.
    pub(crate) started: bool,
    /// What the tests get in their environment.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// Where a server came from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// Its URL was in the environment.
    Environment,
    /// This tool started the process.
    Process(Identity),
    /// This tool had Docker Compose start it.
    Compose(Project),
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
pub(crate) fn up(
    folder: &Path,
    services: &[&'static dyn Service],
    way: &Way,
) -> Result<Vec<Server>> {
    let _lock = Lock::take(folder)?;
    let mut servers = vec![];
    for service in services {
        let url = std::env::var(service.url_variable()).ok();
        match up_one(folder, *service, url, way) {
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
fn up_one(
    folder: &Path,
    service: &'static dyn Service,
    url: Option<String>,
    way: &Way,
) -> Result<Server> {
    let name = service.name();
    if let Some(url) = url {
        let programs = install::ensure(service)?;
        let version = service.version(&programs, &url).with_context(|| {
            format!(
                "the server of {0} does not answer: start it, or unset {0} to have one started",
                service.url_variable()
            )
        })?;
        return Ok(server(
            service,
            &programs,
            url,
            version,
            Origin::Environment,
        ));
    }

    let mut state = State::read(folder)?;
    if let Some(running) = state.services.get(name) {
        if running.process.is_alive() {
            ensure!(
                !matches!(way, Way::Docker(_)),
                "{name} runs without Docker: `cargo xtask services down` first"
            );
            let programs = install::ensure(service)?;
            let version = service.version(&programs, &running.url)?;
            let origin = Origin::Process(running.process);
            return Ok(server(
                service,
                &programs,
                running.url.clone(),
                version,
                origin,
            ));
        }
        place::remove(&running.folder)?;
        state.services.remove(name);
        state.write(folder)?;
    }
    if let Some(project) = state.composed.get(name).cloned() {
        ensure!(
            !matches!(way, Way::Local),
            "{name} runs by Docker Compose: `cargo xtask services down` first"
        );
        if let Ok(server) = composed(service, &project) {
            return Ok(server);
        }
        // Its container ended, as with a restart of the machine.
        return start_composed(folder, service, &project, &mut state);
    }

    match way {
        Way::Docker(project) => return start_composed(folder, service, project, &mut state),
        Way::First(Some(project)) => match start_composed(folder, service, project, &mut state) {
            Err(error) if !interrupt::requested() => say(&format!(
                "{name} does not come by Docker Compose, so a private one starts: {error:#}"
            )),
            outcome => return outcome,
        },
        Way::First(None) | Way::Local => {}
    }
    let programs = install::ensure(service)?;
    let (running, version) = start(folder, service, &programs, &mut state)?;
    let origin = Origin::Process(running.process);
    Ok(Server {
        started: true,
        ..server(service, &programs, running.url, version, origin)
    })
}

/// A server that ran before.
fn server(
    service: &dyn Service,
    programs: &Programs,
    url: String,
    version: String,
    origin: Origin,
) -> Server {
    Server {
        service: service.name(),
        variables: variables(service, Some(programs), &url),
        url,
        version,
        origin,
        started: false,
    }
}

/// A server that runs by Docker Compose; an error when it does not answer.
fn composed(service: &dyn Service, project: &Project) -> Result<Server> {
    let (url, version) = project.ask(service)?;
    Ok(Server {
        service: service.name(),
        // Only tests that start servers of their own need the programs.
        variables: variables(service, service.find().ok().as_ref(), &url),
        url,
        version,
        origin: Origin::Compose(project.clone()),
        started: false,
    })
}

/// Has Docker Compose start it. It is in the state file from its first moment; when it does not
/// come, its container is removed.
fn start_composed(
    folder: &Path,
    service: &dyn Service,
    project: &Project,
    state: &mut State,
) -> Result<Server> {
    let name = service.name();
    state.composed.insert(name.to_owned(), project.clone());
    state.write(folder)?;
    let outcome = project.up(name).and_then(|()| composed(service, project));
    let error = match outcome {
        Ok(server) => {
            return Ok(Server {
                started: true,
                ..server
            });
        }
        Err(error) => error,
    };
    let error = match project.log(name) {
        Ok(log) if !log.is_empty() => error.context(format!("the end of its log:\n{log}")),
        _ => error,
    };
    match remove_composed(folder, name, state) {
        Ok(_) => Err(error),
        Err(left) => Err(error.context(format!("its container may be left: {left:#}"))),
    }
}

/// Removes its container, if it has one; whether it had.
fn remove_composed(folder: &Path, name: &str, state: &mut State) -> Result<bool> {
    let Some(project) = state.composed.get(name) else {
        return Ok(false);
    };
    let is_last = state.composed.len() == 1;
    project.remove(name, is_last)?;
    state.composed.remove(name);
    state.write(folder)?;
    Ok(true)
}

/// What the tests get in their environment.
fn variables(
    service: &dyn Service,
    programs: Option<&Programs>,
    url: &str,
) -> Vec<(&'static str, String)> {
    let program = programs.map(|programs| {
        let program = service.program(programs).display().to_string();
        (service.program_variable(), program)
    });
    std::iter::once((service.url_variable(), url.to_owned()))
        .chain(program)
        .collect()
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
        let removed = remove_composed(folder, service.name(), &mut state)
            .with_context(|| format!("cannot stop {}", service.name()))?;
        if removed && !stopped.contains(&service.name()) {
            stopped.push(service.name());
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

/// A port that was free a moment ago, below those that systems give to outgoing connections (Linux
/// from 32768). Another server may take it before this one does, which then ends with an error that
/// says so.
fn free_port() -> Result<u16> {
    use std::hash::BuildHasher as _;
    const RANGE: std::ops::Range<u16> = 12_000..32_000;
    let count = RANGE.end - RANGE.start;
    let random = std::hash::RandomState::new().hash_one(());
    let first = u16::try_from(random % u64::from(count))?;
    (0..count)
        .map(|step| RANGE.start + (first + step) % count)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .with_context(|| format!("no free loopback port in {RANGE:?}"))
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

#[cfg(test)]
mod tests;
