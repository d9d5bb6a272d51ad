//! Benchmarks, and cases at their full size.

use anyhow::Result;
use clap::Args;

use crate::command::{self, say};
use crate::integration::{self, Plan};
use crate::services::{self, Started, ViaOption, Way};
use crate::workspace::Workspace;

/// Benchmarks that need no server.
const WITHOUT_SERVERS: &[&str] = &["sqlite"];

/// Tests that have a full form take it when this variable is set.
const SOAK_VARIABLE: &str = "OUTBOX_SOAK";

#[derive(Args)]
pub(crate) struct BenchOptions {
    /// What to measure: a command of outbox-bench
    name: String,
    /// Leave the services running
    #[arg(long)]
    keep: bool,
    /// Arguments for outbox-bench
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Args)]
pub(crate) struct SoakOptions {
    /// The name of the case, as `lease-expires-slow-publish`
    #[arg(long)]
    case: String,
    /// Build and look into these crates only, separated by commas
    #[arg(long, value_delimiter = ',')]
    suite: Vec<String>,
    #[command(flatten)]
    via: ViaOption,
    /// Leave the services running
    #[arg(long)]
    keep: bool,
}

/// Builds first, so that nothing is measured while a compiler runs.
pub(crate) fn bench(workspace: &Workspace, options: &BenchOptions) -> Result<bool> {
    let cargo = |verb| {
        let mut cargo = workspace.cargo();
        cargo.args([verb, "--release", "--package", "outbox-bench"]);
        cargo
    };
    command::run(&mut cargo("build"))?;
    crate::interrupt::watch()?;
    let needed = if WITHOUT_SERVERS.contains(&options.name.as_str()) {
        vec![]
    } else {
        services::select(&[])?
    };
    // Docker's network would be measured too.
    let way = Way::Local;
    let mut started = Started::up(workspace.services_folder(), &needed, &way, options.keep)?;
    let mut run = cargo("run");
    run.arg("--quiet")
        .arg("--")
        .arg(&options.name)
        .args(&options.arguments);
    run.envs(started.variables());
    let outcome = command::run_watched(&mut run);
    started.stop()?;
    outcome.map(|()| true)
}

/// Runs the tests whose name has the case's name in it, in release and one at a time.
pub(crate) fn soak(workspace: &Workspace, options: &SoakOptions) -> Result<bool> {
    let test = options.case.replace('-', "_");
    say(&format!("soak: tests named `{test}`, {SOAK_VARIABLE}=1"));
    integration::run_plan(
        workspace,
        &Plan {
            only: &[],
            suites: &options.suite,
            test_arguments: &[
                test,
                "--test-threads=1".to_owned(),
                "--nocapture".to_owned(),
            ],
            via: options.via.via,
            keep: options.keep,
            release: true,
            variables: &[(SOAK_VARIABLE, "1")],
        },
    )
}
