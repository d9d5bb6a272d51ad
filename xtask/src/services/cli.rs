//! `cargo xtask services up|down|status|env`.

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::command::say;
use crate::interrupt;
use crate::services::state::State;
use crate::services::{self, Origin, Server, Service, ViaOption, Way};
use crate::workspace::Workspace;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make the services answer, starting what does not run.
    Up(UpOptions),
    /// Stop what `up` started, and remove its data.
    Down(Selection),
    /// Print each service with its URL, version and process.
    Status(Selection),
    /// Print the variables of the running services as `export` lines, for `eval` in a shell.
    Env(Selection),
}

#[derive(Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    via: ViaOption,
}

#[derive(Args)]
pub(crate) struct Selection {
    /// These services, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, command: &Command) -> Result<bool> {
    let folder = workspace.services_folder();
    match command {
        Command::Up(options) => {
            interrupt::watch()?;
            let services = services::select(&options.selection.only)?;
            let way = Way::choose(options.via.via, &workspace.root)?;
            for server in services::up(&folder, &services, &way)? {
                let how = if server.started {
                    "started"
                } else {
                    "already up"
                };
                say(&format!("{} ({how})", line(&server)));
            }
            Ok(true)
        }
        Command::Down(selection) => {
            let stopped = services::down(&folder, &services::select(&selection.only)?)?;
            for name in &stopped {
                say(&format!("{name} stopped"));
            }
            if stopped.is_empty() {
                say("nothing to stop");
            }
            Ok(true)
        }
        Command::Status(selection) => {
            let mut all_up = true;
            for service in services::select(&selection.only)? {
                match running(&State::read(&folder)?, service) {
                    Ok(Some(server)) => say(&line(&server)),
                    Ok(None) => {
                        say(&format!("{} is down", service.name()));
                        all_up = false;
                    }
                    Err(error) => {
                        say(&format!("{} does not answer: {error:#}", service.name()));
                        all_up = false;
                    }
                }
            }
            Ok(all_up)
        }
        Command::Env(selection) => {
            let state = State::read(&folder)?;
            for service in services::select(&selection.only)? {
                let Some(server) = running(&state, service)? else {
                    anyhow::bail!("{} is down: cargo xtask services up", service.name());
                };
                for (name, value) in &server.variables {
                    say(&format!("export {name}={}", quote(value)));
                }
            }
            Ok(true)
        }
    }
}

/// The server of a service if it runs, without starting or installing anything.
fn running(state: &State, service: &'static dyn Service) -> Result<Option<Server>> {
    let known = state
        .services
        .get(service.name())
        .filter(|running| running.process.is_alive());
    let (url, origin) = match (std::env::var(service.url_variable()), known) {
        (Ok(url), _) => (url, Origin::Environment),
        (Err(_), Some(running)) => (running.url.clone(), Origin::Process(running.process)),
        (Err(_), None) => {
            let project = state.composed.get(service.name());
            return project
                .map(|project| services::composed(service, project))
                .transpose();
        }
    };
    let programs = service.find()?;
    let version = service.version(&programs, &url)?;
    Ok(Some(services::server(
        service, &programs, url, version, origin,
    )))
}

fn line(server: &Server) -> String {
    let origin = match &server.origin {
        Origin::Environment => "from the environment".to_owned(),
        Origin::Process(process) => format!("pid {}", process.pid),
        Origin::Compose(project) => format!("Docker Compose project {}", project.name()),
    };
    format!(
        "{} {} at {}, {origin}",
        server.service,
        server.version,
        without_password(&server.url)
    )
}

/// The URL as it may be shown: the password is for the server only.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // A query may hold one too (`?password=…`), and is not needed to recognise the server.
    let path = path.split('?').next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}:***@{host}{path}")
        }
        _ => format!("{scheme}://{authority}{path}"),
    }
}

/// For a POSIX shell.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let shown = without_password;
        assert_eq!(shown("postgres://u:s3cret@h:1/d"), "postgres://u:***@h:1/d");
        assert_eq!(shown("redis://:s3cret@h:1/"), "redis://:***@h:1/");
        assert_eq!(shown("postgres://u:a@b@h/d"), "postgres://u:***@h/d");
        assert_eq!(
            shown("postgres://u@h/d?password=s3cret"),
            "postgres://u@h/d"
        );
        assert_eq!(shown("redis://h:1/"), "redis://h:1/");
    }

    #[test]
    fn quoted_value_survives_a_shell() {
        let value = "it's $HOME `x`";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("printf %s {}", quote(value))]);
        assert_eq!(crate::command::output(&mut shell).unwrap(), value);
    }
}
