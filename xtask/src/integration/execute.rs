//! Running the test programs, one after another, and the documentation's tests.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, Signal};

use crate::command::{self, End, say};
use crate::integration::build::{self, Program};
use crate::integration::result;
use crate::integration::table::{Report, Row};
use crate::integration::{PROGRAM_LIMIT, Plan, SOAK_LIMIT, Suite};
use crate::interrupt;
use crate::process::{self, MARKER};
use crate::services::Started;
use crate::workspace::Workspace;

/// How long servers that a test started may take to end after it, before they count as left.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the suites and reports each.
pub(crate) fn all(
    workspace: &Workspace,
    plan: &Plan<'_>,
    suites: &[Suite],
    started: &Started,
    report: &mut Report,
) -> Result<()> {
    let programs = build::programs(workspace, plan, suites)?;
    let run = Run {
        workspace,
        plan,
        started,
        marker: format!("integration-{}", std::process::id()),
    };
    let mut documentation = run.documentation(suites, report)?;
    for suite in suites {
        let name = &suite.package.name;
        let mut row = documentation.remove(name).unwrap_or_default();
        row.suite.clone_from(name);
        row.needs.clone_from(&suite.needs);
        for program in programs
            .iter()
            .filter(|program| program.package_id == suite.package.id)
        {
            if interrupt::requested() {
                break;
            }
            run.program(suite, program, &mut row)?;
        }
        report.add(row);
    }
    Ok(())
}

struct Run<'a> {
    workspace: &'a Workspace,
    plan: &'a Plan<'a>,
    started: &'a Started,
    /// The value of [`MARKER`].
    marker: String,
}

impl Run<'_> {
    fn program(&self, suite: &Suite, program: &Program, row: &mut Row) -> Result<()> {
        say(&format!("\n--- {}", program.title));
        let mut command = Command::new(&program.file);
        // What cargo sets for the tests that it runs.
        command.current_dir(suite.package.folder());
        command.env("CARGO_MANIFEST_DIR", suite.package.folder());
        command.env("CARGO_PKG_NAME", &suite.package.name);
        command.env("CARGO_PKG_VERSION", &suite.package.version);
        command.args(self.plan.test_arguments);
        self.prepare(&mut command);

        let since = Instant::now();
        let mut counts = None;
        let (end, group) = command::stream(&mut command, self.limit(), |line| {
            say(line);
            if let Some(found) = result::parse(line) {
                counts = Some(found);
            }
        })?;
        row.took += since.elapsed();
        let has_failed = counts.is_some_and(|counts| counts.failed > 0);
        row.counts += counts.unwrap_or_default();
        let ended_badly = problem(&program.title, &end, has_failed);
        if counts.is_none() && ended_badly.is_none() {
            let title = &program.title;
            row.problems
                .push(format!("{title} printed no result of tests"));
        }
        row.problems.extend(ended_badly);
        row.problems.extend(self.leftovers(&program.title, group)?);
        Ok(())
    }

    /// The documentation's tests of all suites in one run, by the suite's name.
    fn documentation(
        &self,
        suites: &[Suite],
        report: &mut Report,
    ) -> Result<BTreeMap<String, Row>> {
        let libraries: BTreeMap<String, &str> = suites
            .iter()
            .filter_map(|suite| {
                Some((
                    suite.package.doctested_library()?,
                    suite.package.name.as_str(),
                ))
            })
            .collect();
        let mut rows = BTreeMap::<String, Row>::new();
        if libraries.is_empty() || interrupt::requested() {
            return Ok(rows);
        }
        say("\n--- documentation");
        // The same packages as in the build, or their dependencies get other features.
        let [(is_tool, names), _] = build::groups(suites);
        let mut cargo = self.workspace.cargo();
        cargo.args(["test", "--doc", "--all-features", "--no-fail-fast"]);
        build::configure(&mut cargo, self.workspace, self.plan, is_tool, &names);
        cargo.arg("--").args(self.plan.test_arguments);
        self.prepare(&mut cargo);

        let mut current = None;
        let mut since = Instant::now();
        let (end, group) = command::stream(&mut cargo, self.limit(), |line| {
            say(line);
            if let Some(library) = result::doc_heading(line) {
                current = libraries.get(library).copied();
                since = Instant::now();
            } else if let (Some(counts), Some(name)) = (result::parse(line), current) {
                let row = rows.entry(name.to_owned()).or_default();
                row.counts += counts;
                row.took += since.elapsed();
                since = Instant::now();
            }
        })?;
        let has_failed = rows.values().any(|row| row.counts.failed > 0);
        let left = self.leftovers("documentation", group)?;
        for problem in problem("documentation", &end, has_failed)
            .into_iter()
            .chain(left)
        {
            report.problem(problem);
        }
        Ok(rows)
    }

    fn limit(&self) -> Duration {
        if self.plan.release {
            SOAK_LIMIT
        } else {
            PROGRAM_LIMIT
        }
    }

    fn prepare(&self, command: &mut Command) {
        command.envs(self.started.variables());
        command.envs(self.plan.variables.iter().copied());
        command.env(MARKER, &self.marker);
    }

    /// Kills what a program left behind; each is a problem.
    fn leftovers(&self, title: &str, group: Pid) -> Result<Vec<String>> {
        let until = Instant::now() + LEFTOVER_PATIENCE;
        loop {
            let left = process::leftovers(&self.marker, group)?;
            if left.is_empty() {
                return Ok(vec![]);
            }
            if Instant::now() < until {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            for leftover in &left {
                leftover
                    .identity
                    .stop(Signal::KILL, Duration::from_secs(5))?;
            }
            let line =
                |left: &process::Leftover| format!("{title} left a process: {}", left.command);
            return Ok(left.iter().map(line).collect());
        }
    }
}

/// What is wrong with how a program ended, unless its failed tests say it already.
fn problem(title: &str, end: &End, has_failed_tests: bool) -> Option<String> {
    match end {
        End::Exited(status) if status.success() || has_failed_tests => None,
        End::Exited(status) => Some(format!("{title} ended with {status}")),
        End::TimedOut => Some(format!("{title} hung and was stopped")),
        End::Interrupted => Some(format!("{title} was interrupted")),
    }
}
