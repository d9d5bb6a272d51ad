//! Building the test programs, all with one set of features, and learning where they are.
//!
//! They are built together and run one by one: `cargo test --package` for each crate would give
//! the shared dependencies other features each time and build them again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command::show;
use crate::integration::{Plan, Suite};
use crate::workspace::Workspace;

/// A test program of a suite.
#[derive(Debug, PartialEq)]
pub(crate) struct Program {
    pub(crate) package_id: String,
    /// What it tests, as `outbox-core/src/lib.rs`.
    pub(crate) title: String,
    pub(crate) file: PathBuf,
}

/// Builds the test programs of the suites. A compiler error is on the terminal when this fails.
pub(crate) fn programs(
    workspace: &Workspace,
    plan: &Plan<'_>,
    suites: &[Suite],
) -> Result<Vec<Program>> {
    let mut programs = vec![];
    for (is_tool, names) in groups(suites) {
        if names.is_empty() {
            continue;
        }
        let mut cargo = workspace.cargo();
        cargo.arg("test").args(["--all-features", "--no-run"]);
        cargo.arg("--message-format=json-render-diagnostics");
        configure(&mut cargo, workspace, plan, is_tool, &names);
        cargo.stderr(Stdio::inherit());
        let output = cargo.output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!("the tests do not build: `{}`", show(&cargo));
        }
        programs.extend(parse(
            &String::from_utf8_lossy(&output.stdout),
            &workspace.root,
        )?);
    }
    Ok(programs)
}

/// The names of the suites, this tool's apart: it is built in a target folder of its own.
pub(crate) fn groups(suites: &[Suite]) -> [(bool, Vec<&str>); 2] {
    let names = suites.iter().map(|suite| suite.package.name.as_str());
    let (tool, others): (Vec<_>, Vec<_>) = names.partition(|name| *name == env!("CARGO_PKG_NAME"));
    [(false, others), (true, tool)]
}

/// What a build and a run of the documentation's tests have in common.
pub(crate) fn configure(
    cargo: &mut Command,
    workspace: &Workspace,
    plan: &Plan<'_>,
    is_tool: bool,
    names: &[&str],
) {
    for name in names {
        cargo.args(["--package", name]);
    }
    if plan.release {
        cargo.arg("--release");
    }
    if is_tool {
        cargo
            .arg("--target-dir")
            .arg(workspace.target.join("xtask"));
    }
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<MessageTarget>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct MessageTarget {
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Cargo prints one JSON object a line.
fn parse(text: &str, root: &Path) -> Result<Vec<Program>> {
    let mut programs = vec![];
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("cargo printed other JSON")?;
        let is_test = message.profile.is_some_and(|profile| profile.test);
        if message.reason != "compiler-artifact" || !is_test {
            continue;
        }
        if let (Some(package_id), Some(target), Some(file)) =
            (message.package_id, message.target, message.executable)
        {
            let source = target
                .src_path
                .strip_prefix(root)
                .unwrap_or(&target.src_path);
            programs.push(Program {
                package_id,
                title: source.display().to_string(),
                file,
            });
        }
    }
    programs.sort_by(|a, b| a.title.cmp(&b.title));
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_picked_out_of_what_cargo_prints() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","target":{{"src_path":"/w/a/tests/x.rs"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let text = [
            r#"{"reason":"build-script-executed","package_id":"q"}"#.to_owned(),
            line(false, r#""/t/outbox""#),
            line(true, "null"),
            line(true, r#""/t/x-1""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ]
        .join("\n");
        let expected = Program {
            package_id: "p".into(),
            title: "a/tests/x.rs".into(),
            file: "/t/x-1".into(),
        };
        assert_eq!(parse(&text, Path::new("/w")).unwrap(), [expected]);
    }
}
