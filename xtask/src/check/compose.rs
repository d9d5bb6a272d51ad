//! `compose.yaml` by the published schema of Compose files and by rules of this workspace.
//!
//! It is all the proof there is for the file: the project has no Docker daemon to run it on.

use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::say;
use crate::services::compose::FILE;
use crate::services::{self, Service};
use crate::workspace::Workspace;

/// Where it is from: `xtask/schema/README.md`.
const SCHEMA: &str = include_str!("../../schema/compose-spec.json");

/// Prints what is wrong with the file; an error if anything is.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let text = fs::read_to_string(workspace.root.join(FILE))
        .with_context(|| format!("cannot read {FILE}"))?;
    let problems = problems(&text)?;
    for problem in &problems {
        say(&format!("{FILE}: {problem}"));
    }
    if !problems.is_empty() {
        bail!("{FILE} breaks {} rules", problems.len());
    }
    say(&format!("{FILE}: linted, not run against a daemon"));
    Ok(())
}

/// One line for each breach.
fn problems(text: &str) -> Result<Vec<String>> {
    let file: Value = match serde_saphyr::from_str(text) {
        Ok(file) => file,
        Err(error) => return Ok(vec![format!("does not parse: {error}")]),
    };
    let schema = serde_json::from_str(SCHEMA).context("the schema is damaged")?;
    let schema = jsonschema::draft7::new(&schema).context("the schema is none")?;
    let mut problems: Vec<_> = schema
        .iter_errors(&file)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    for (name, service) in file["services"].as_object().into_iter().flatten() {
        let found = [
            healthcheck_problem(service),
            image_problem(service),
            ports_problem(service),
        ];
        let found = found.into_iter().flatten();
        problems.extend(found.map(|problem| format!("{name}: {problem}")));
    }
    for service in services::ALL {
        let found = service_problems(*service, &file["services"][service.name()]);
        problems.extend(found.map(|problem| format!("{}: {problem}", service.name())));
    }
    Ok(problems)
}

/// `up --wait` waits for a service without one only until its process runs.
fn healthcheck_problem(service: &Value) -> Option<String> {
    let check = &service["healthcheck"];
    let is_on = !check["test"].is_null() && check["test"] != "NONE" && check["test"][0] != "NONE";
    let is_off = check["disable"] == true;
    (!is_on || is_off).then(|| "no healthcheck".to_owned())
}

/// The tag begins with a major version, so that a new one is a change in this file.
fn image_problem(service: &Value) -> Option<String> {
    let image = service["image"].as_str().unwrap_or_default();
    let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
    let major = tag.split(['.', '-']).next().unwrap_or_default();
    let is_pinned = !major.is_empty() && major.bytes().all(|byte| byte.is_ascii_digit());
    (!is_pinned).then(|| format!("the image `{image}` has no major version as its tag"))
}

/// The servers ask for no password.
fn ports_problem(service: &Value) -> Option<String> {
    if service["network_mode"] == "host" {
        return Some("the host's network may be open to others".to_owned());
    }
    let ports = service["ports"].as_array().into_iter().flatten();
    let mut open = ports.filter(|port| match port {
        Value::String(short) => !short.starts_with("127.0.0.1:"),
        long => long["host_ip"] != "127.0.0.1",
    });
    open.next()
        .map(|port| format!("the port {port} is not on 127.0.0.1 only"))
}

/// What `cargo xtask services` relies on, and the settings that its private servers have too.
fn service_problems(service: &dyn Service, file: &Value) -> impl Iterator<Item = String> {
    let container = service.container();
    let port = container.port.to_string();
    let mut ports = file["ports"].as_array().into_iter().flatten();
    let is_published = ports.any(|published| match published {
        Value::String(short) => short.rsplit(':').next() == Some(&port),
        long => long["target"] == container.port,
    });
    let words: Vec<_> = file["command"].as_array().into_iter().flatten().collect();
    let missing = container.settings.into_iter().filter_map(move |setting| {
        let is_set = words
            .windows(setting.len())
            .any(|found| found.iter().zip(&setting).all(|(word, set)| *word == set));
        (!is_set).then(|| {
            format!(
                "the command lacks `{}` of the private server",
                setting.join(" ")
            )
        })
    });
    (!is_published)
        .then(|| format!("does not publish port {port}"))
        .into_iter()
        .chain(missing)
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let workspace = Workspace::find().unwrap();
        fs::read_to_string(workspace.root.join(FILE)).unwrap()
    }

    #[test]
    fn the_file_itself_breaks_no_rule() {
        assert_eq!(problems(&text()).unwrap(), [""; 0]);
    }

    #[test]
    fn each_breach_is_found() {
        for (right, wrong, found) in [
            ("services:", "services: [", "does not parse"),
            ("services:", "servers:", "servers"),
            ("    healthcheck:", "    healthchecks:", "healthchecks"),
            (
                "interval: 1s",
                "interval: [1]",
                "/services/postgres/healthcheck/interval",
            ),
            (
                "    healthcheck:",
                "    x-healthcheck:",
                "postgres: no healthcheck",
            ),
            ("interval: 1s", "disable: true", "postgres: no healthcheck"),
            ("[CMD-SHELL, ", "[NONE, ", "redis: no healthcheck"),
            ("redis:7", "redis", "redis: the image `redis`"),
            ("redis:7", "redis:latest", "redis: the image `redis:latest`"),
            ("redis:7", "host:7/redis", "redis: the image `host:7/redis`"),
            ("127.0.0.1::6379", "6379", "redis: the port \"6379\""),
            ("127.0.0.1::6379", "0.0.0.0::6379", "redis: the port"),
            (
                "127.0.0.1::6379",
                "127.0.0.1::6380",
                "redis: does not publish port 6379",
            ),
            (
                "\"127.0.0.1::5432\"",
                "{target: 5432}",
                "postgres: the port",
            ),
            (
                "    ports:\n      # D",
                "    network_mode: host\n    ports:\n      # D",
                "postgres: the host's",
            ),
            (
                "--appendfsync, always",
                "--appendfsync, no",
                "lacks `--appendfsync always`",
            ),
            (
                "wal_level=logical",
                "wal_level=replica",
                "lacks `-c wal_level=logical`",
            ),
            ("  redis:\n", "  redis2:\n", "redis: does not publish"),
        ] {
            let text = text();
            assert!(text.contains(right), "{right}");
            let problems = problems(&text.replacen(right, wrong, 1)).unwrap();
            assert!(
                problems.iter().any(|problem| problem.contains(found)),
                "{wrong}: {problems:?}"
            );
        }
    }

    #[test]
    fn the_long_form_of_a_port_is_read_too() {
        let long = "{target: 5432, host_ip: 127.0.0.1}";
        let text = text().replacen("\"127.0.0.1::5432\"", long, 1);
        assert_eq!(problems(&text).unwrap(), [""; 0]);
    }
}
