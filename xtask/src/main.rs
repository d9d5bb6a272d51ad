//! Automation of the workspace: `cargo xtask help` lists the commands.
//!
//! It depends on no crate of the workspace, so it builds and runs while they do not.

mod bench;
mod check;
mod command;
mod integration;
mod interrupt;
mod process;
mod services;
mod sim;
mod tidy;
mod wheel;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Automation of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start, stop and show the real servers that the tests run on.
    #[command(subcommand)]
    Services(services::cli::Command),
    /// Run every test of the workspace on real servers, and print what ran on which version.
    Integration(integration::Options),
    /// Formatting, lints, docs, dependencies and tidy: everything that needs no server.
    Check(check::Options),
    /// Check the rules of the source tree.
    Tidy,
    /// Run a benchmark of outbox-bench on real servers.
    Bench(bench::BenchOptions),
    /// Run one case at its full size, in release, on real servers.
    Soak(bench::SoakOptions),
    /// Run the relay engine through seeded histories of faults, judged by the invariants.
    #[command(disable_help_flag = true)]
    Sim(sim::SimOptions),
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if interrupt::requested() => ExitCode::from(130),
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the command succeeded; an error is a command that could not do its work.
fn run(command: &Command) -> Result<bool> {
    let workspace = Workspace::find()?;
    match command {
        Command::Services(command) => services::cli::run(&workspace, command),
        Command::Integration(options) => integration::run(&workspace, options),
        Command::Check(options) => Ok(check::run(&workspace, options)),
        Command::Tidy => tidy::run(&workspace),
        Command::Bench(options) => bench::bench(&workspace, options),
        Command::Soak(options) => bench::soak(&workspace, options),
        Command::Sim(options) => sim::run(&workspace, options),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_after_two_dashes_reach_the_tests() {
        let cli = Cli::parse_from(["cargo xtask", "integration", "--only", "redis", "--", "i5_"]);
        let Command::Integration(options) = cli.command else {
            panic!("another command was parsed");
        };
        assert_eq!(options.only, ["redis"]);
        assert_eq!(options.test_arguments, ["i5_"]);
    }
}
