//! Rules about what depends on what.

use anyhow::Result;

use crate::command;
use crate::workspace::{Package, Workspace};

/// The crate of suites, faults and generators.
const TESTKIT: &str = "outbox-testkit";

/// Crates that nobody ships, so they may use the testkit outside their tests.
const NOT_SHIPPED: &[&str] = &[TESTKIT, "outbox-bench", "examples"];

/// Other TLS and crypto libraries than rustls on ring: each would be a second one in the same
/// program, and needs a C toolchain or a system library.
const FOREIGN_TLS: &[&str] = &[
    "aws-lc-rs",
    "aws-lc-sys",
    "openssl",
    "openssl-sys",
    "native-tls",
];

/// What is shipped does not carry the testkit.
pub(crate) fn testkit_only_for_tests(packages: &[Package]) -> Vec<String> {
    let shipped = packages
        .iter()
        .filter(|package| !NOT_SHIPPED.contains(&package.name.as_str()));
    shipped
        .filter(|package| {
            let mut dependencies = package.dependencies.iter();
            dependencies.any(|d| d.name == TESTKIT && d.kind.as_deref() != Some("dev"))
        })
        .map(|package| format!("{}: {TESTKIT} is for dev-dependencies only", package.name))
        .collect()
}

/// The names of all packages that a build of everything uses on this platform.
pub(crate) fn graph(workspace: &Workspace) -> Result<Vec<String>> {
    let mut cargo = workspace.cargo();
    cargo.args([
        "tree",
        "--workspace",
        "--all-features",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let text = command::output(&mut cargo)?;
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// One TLS library in the graph.
pub(crate) fn no_second_tls(graph: &[String]) -> Vec<String> {
    let found = FOREIGN_TLS
        .iter()
        .filter(|name| graph.iter().any(|package| package == *name));
    found
        .map(|name| {
            format!("Cargo.lock: {name} is in the graph: choose the features for rustls on ring")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, kind: Option<&str>) -> Package {
        Package {
            id: name.into(),
            name: name.into(),
            version: "0.1.0".into(),
            manifest_path: format!("{name}/Cargo.toml").into(),
            targets: vec![],
            dependencies: vec![Dependency {
                name: TESTKIT.into(),
                kind: kind.map(Into::into),
            }],
        }
    }

    #[test]
    fn shipped_testkit_is_found() {
        let packages = [
            package("outbox-redis", Some("dev")),
            package("outbox-cli", None),
            package("outbox-core", Some("build")),
            package("outbox-bench", None),
        ];
        let problems = testkit_only_for_tests(&packages);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("outbox-cli") && problems[1].starts_with("outbox-core"));
    }

    #[test]
    fn second_tls_library_is_found() {
        let graph = ["rustls", "ring", "openssl-probe"].map(str::to_owned);
        assert!(no_second_tls(&graph).is_empty());
        let graph = ["ring", "aws-lc-rs"].map(str::to_owned);
        assert_eq!(no_second_tls(&graph).len(), 1);
    }

    #[test]
    fn graph_has_the_members() {
        let graph = graph(&Workspace::find().unwrap()).unwrap();
        assert!(graph.iter().any(|name| name == "xtask"), "{graph:?}");
    }
}
