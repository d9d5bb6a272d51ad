//! `cargo xtask integration`: every test of the workspace, on real servers.

mod build;
mod execute;
mod result;
mod table;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::command::say;
use crate::interrupt;
use crate::services::state::Lock;
use crate::services::{self, Service, Started, Via, ViaOption, Way, install};
use crate::workspace::{Package, Workspace};

/// A test program that runs longer hangs.
const PROGRAM_LIMIT: Duration = Duration::from_mins(15);
/// A soak runs minutes of a case's full form.
const SOAK_LIMIT: Duration = Duration::from_hours(4);

/// Crates whose tests need fewer servers than all of them. A crate that is not named here gets
/// every service, so a new one can be forgotten without harm.
const NEEDS: &[(&str, &[&str])] = &[
    ("outbox-amqp", &["amqp"]),
    ("outbox-core", &[]),
    ("outbox-kafka", &["kafka"]),
    // Its own tests start and stop one.
    ("xtask", &["redis"]),
    ("outbox-postgres", &["postgres"]),
    ("outbox-nats", &["nats"]),
    ("outbox-redis", &["redis"]),
    ("outbox-sqlite", &[]),
];

/// Crates whose tests make clocks wrong.
const WRONG_CLOCKS: &[&str] = &["outbox-testkit", "outbox-cli"];

#[derive(Args)]
pub(crate) struct Options {
    /// Run on these services only, separated by commas, and leave out the crates that need others
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Run the tests of these crates only, separated by commas
    #[arg(long, value_delimiter = ',')]
    suite: Vec<String>,
    #[command(flatten)]
    via: ViaOption,
    /// Leave the services running
    #[arg(long)]
    keep: bool,
    /// A filter and options for the test programs, as after `cargo test --`
    #[arg(last = true)]
    pub(crate) test_arguments: Vec<String>,
}

/// What to run, and how.
pub(crate) struct Plan<'a> {
    pub(crate) only: &'a [String],
    pub(crate) suites: &'a [String],
    pub(crate) test_arguments: &'a [String],
    pub(crate) via: Via,
    pub(crate) keep: bool,
    pub(crate) release: bool,
    /// Variables for the tests beside those of the services.
    pub(crate) variables: &'a [(&'a str, &'a str)],
}

/// The tests of one crate.
#[derive(Debug)]
struct Suite {
    package: Package,
    needs: Vec<&'static str>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    run_plan(
        workspace,
        &Plan {
            only: &options.only,
            suites: &options.suite,
            test_arguments: &options.test_arguments,
            via: options.via.via,
            keep: options.keep,
            release: false,
            variables: &[],
        },
    )
}

/// Runs the plan and prints its table; the last line is `N passed, N failed`. Whether all of it
/// passed. What it started is stopped, however it ends.
pub(crate) fn run_plan(workspace: &Workspace, plan: &Plan<'_>) -> Result<bool> {
    interrupt::watch()?;
    let services = services::select(plan.only)?;
    let (suites, left_out) = suites(&workspace.packages, &services, plan.suites)?;
    for line in &left_out {
        say(line);
    }
    let needed: Vec<_> = services
        .into_iter()
        .filter(|service| {
            suites
                .iter()
                .any(|suite| suite.needs.contains(&service.name()))
        })
        .collect();

    let way = Way::choose(plan.via, &workspace.root)?;
    let folder = workspace.services_folder();
    // Two runs at once would share servers, and the first to end would stop them.
    let _lock = Lock::named(
        &folder,
        "integration.lock",
        "another run is under way: waiting",
    )?;
    if suites
        .iter()
        .any(|suite| WRONG_CLOCKS.contains(&suite.package.name.as_str()))
    {
        install::ensure_clock()?;
    }
    let mut started = Started::up(folder, &needed, &way, plan.keep)?;
    let versions = started
        .servers
        .iter()
        .map(|s| (s.service, s.version.clone()))
        .collect();

    let mut report = table::Report::new(versions, !plan.test_arguments.is_empty());
    let outcome = execute::all(workspace, plan, &suites, &started, &mut report);
    if interrupt::requested() {
        report.problem("interrupted: not everything ran".to_owned());
    } else if let Err(error) = outcome {
        report.problem(format!("{error:#}"));
    }
    if let Err(error) = started.stop() {
        report.problem(format!("{error:#}"));
    }
    say("");
    for line in report.lines() {
        say(&line);
    }
    Ok(report.failed() == 0)
}

/// The suites that can run on the services, one for each crate; and a line for each that cannot.
fn suites(
    packages: &[Package],
    services: &[&'static dyn Service],
    names: &[String],
) -> Result<(Vec<Suite>, Vec<String>)> {
    if let Some(unknown) = names
        .iter()
        .find(|name| !packages.iter().any(|p| &p.name == *name))
    {
        bail!("the workspace has no crate `{unknown}`");
    }
    let (mut suites, mut left_out) = (vec![], vec![]);
    for package in packages {
        if !names.is_empty() && !names.contains(&package.name) {
            continue;
        }
        let needs = needs(&package.name);
        let missing: Vec<_> = needs
            .iter()
            .copied()
            .filter(|need| !services.iter().any(|service| service.name() == *need))
            .collect();
        if missing.is_empty() {
            suites.push(Suite {
                package: package.clone(),
                needs,
            });
        } else {
            left_out.push(format!(
                "{} left out by --only: it needs {}",
                package.name,
                missing.join(", ")
            ));
        }
    }
    if suites.is_empty() {
        bail!("no suite is left to run");
    }
    Ok((suites, left_out))
}

fn needs(package: &str) -> Vec<&'static str> {
    match NEEDS.iter().find(|(name, _)| *name == package) {
        Some((_, needs)) => needs.to_vec(),
        None => services::ALL.iter().map(|service| service.name()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package {
            id: name.into(),
            name: name.into(),
            version: "0.1.0".into(),
            manifest_path: format!("/x/{name}/Cargo.toml").into(),
            targets: vec![],
            dependencies: vec![],
        }
    }

    fn names(only: &[&str], wanted: &[&str]) -> Result<Vec<String>> {
        let strings = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        let packages = [
            "a-new-crate",
            "outbox-core",
            "outbox-postgres",
            "outbox-redis",
        ]
        .map(package);
        let services = services::select(&strings(only))?;
        let (suites, left_out) = suites(&packages, &services, &strings(wanted))?;
        let expected = if wanted.is_empty() {
            packages.len()
        } else {
            wanted.len()
        };
        assert_eq!(suites.len() + left_out.len(), expected);
        Ok(suites.into_iter().map(|suite| suite.package.name).collect())
    }

    #[test]
    fn every_member_is_a_suite() {
        let all = [
            "a-new-crate",
            "outbox-core",
            "outbox-postgres",
            "outbox-redis",
        ];
        assert_eq!(names(&[], &[]).unwrap(), all);
    }

    #[test]
    fn only_leaves_out_what_needs_more() {
        assert_eq!(
            names(&["redis"], &[]).unwrap(),
            ["outbox-core", "outbox-redis"]
        );
    }

    #[test]
    fn unknown_or_empty_choice_is_an_error() {
        assert!(names(&[], &["outbox-rediss"]).is_err());
        assert!(names(&["redis"], &["outbox-postgres"]).is_err());
    }

    #[test]
    fn needs_name_members_and_services() {
        let workspace = Workspace::find().unwrap();
        for (name, needs) in NEEDS {
            assert!(
                workspace
                    .packages
                    .iter()
                    .any(|package| package.name == *name),
                "{name}"
            );
            for need in *needs {
                assert!(services::select(&[(*need).to_owned()]).is_ok(), "{need}");
            }
        }
    }
}
