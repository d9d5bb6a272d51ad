//! Long runs of the simulation.

use anyhow::Result;
use clap::Args;

use crate::command;
use crate::workspace::Workspace;

#[derive(Args)]
pub(crate) struct SimOptions {
    /// `--seeds N` runs so many, `--seed S` replays one step by step; `--help` tells the rest
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the simulation's program, optimised.
pub(crate) fn run(workspace: &Workspace, options: &SimOptions) -> Result<bool> {
    let mut cargo = workspace.cargo();
    cargo
        .args(["run", "--quiet", "--release", "--package", "outbox-testkit"])
        .args(["--bin", "outbox-sim", "--"])
        .args(&options.arguments);
    crate::interrupt::watch()?;
    command::run_watched(&mut cargo).map(|()| true)
}
