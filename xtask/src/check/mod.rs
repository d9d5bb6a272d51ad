//! `cargo xtask check`: everything that needs no server.

mod compose;
mod deny;

use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::command::{self, say};
use crate::tidy;
use crate::workspace::Workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Compare the dependencies with the advisory database too; it is fetched from the internet
    #[arg(long)]
    advisories: bool,
}

/// Runs every step, also after one has failed, and lists them. Whether all passed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> bool {
    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace.cargo();
        cargo.args(arguments);
        move || command::run(&mut cargo)
    };
    let mut steps = Steps::default();
    steps.run("fmt", cargo(&["fmt", "--all", "--check"]));
    steps.run("tidy", || tidy::check(workspace));
    steps.run("compose", || compose::check(workspace));
    steps.run(
        "clippy",
        // `--locked`: what is checked is what Cargo.lock says.
        cargo(&[
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-Dwarnings",
        ]),
    );
    let mut doc: Command = workspace.cargo();
    doc.args([
        "doc",
        "--locked",
        "--no-deps",
        "--workspace",
        "--all-features",
    ]);
    doc.env("RUSTDOCFLAGS", "-Dwarnings");
    steps.run("docs", || command::run(&mut doc));
    steps.run("deny", || {
        deny::check(workspace, &["bans", "licenses", "sources"])
    });
    if options.advisories {
        steps.run("advisories", || deny::check(workspace, &["advisories"]));
    }
    let passed = steps.print();
    if !options.advisories {
        say("advisories  not run (needs its database: --advisories fetches it)");
    }
    passed
}

/// The steps that ran, with what became of each.
#[derive(Default)]
struct Steps {
    done: Vec<(&'static str, bool, f64)>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        say(&format!("--- {name}"));
        let since = Instant::now();
        let outcome = step();
        if let Err(error) = &outcome {
            eprintln!("error: {error:#}");
        }
        self.done
            .push((name, outcome.is_ok(), since.elapsed().as_secs_f64()));
    }

    fn print(&self) -> bool {
        say("");
        for (name, passed, seconds) in &self.done {
            let verdict = if *passed { "passed" } else { "FAILED" };
            say(&format!("{name:10}  {verdict}  {seconds:6.1} s"));
        }
        self.done.iter().all(|(_, passed, _)| *passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_step_fails_the_check_and_the_next_runs() {
        let mut steps = Steps::default();
        steps.run("first", || anyhow::bail!("broken"));
        let mut ran = false;
        steps.run("second", || {
            ran = true;
            Ok(())
        });
        assert!(ran);
        assert!(!steps.print());
    }
}
