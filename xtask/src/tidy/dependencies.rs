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

/// The one exception: the library, and who alone may bring it. librdkafka is a C library whose TLS is
/// OpenSSL; a feature that no default turns on brings it.
const OPENSSL: &str = "openssl-sys";
const OPENSSL_USER: &str = "rdkafka-sys";

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

/// The packages that builds use on this platform.
pub(crate) struct Graph {
    /// With every feature.
    whole: Vec<String>,
    /// With the default features.
    usual: Vec<String>,
    /// Who brings [`OPENSSL`].
    openssl_users: Vec<String>,
}

impl Graph {
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let whole = names(workspace, &["--all-features"])?;
        let openssl_users = if whole.iter().any(|name| name == OPENSSL) {
            let inverted = ["--all-features", "--invert", OPENSSL, "--depth", "1"];
            let names = names(workspace, &inverted)?;
            names.into_iter().filter(|name| name != OPENSSL).collect()
        } else {
            vec![]
        };
        Ok(Self {
            whole,
            usual: names(workspace, &[])?,
            openssl_users,
        })
    }
}

fn names(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<String>> {
    let mut cargo = workspace.cargo();
    cargo.args(["tree", "--workspace", "--prefix", "none", "--format", "{p}"]);
    let text = command::output(cargo.args(arguments))?;
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// One TLS library in the graph, but for librdkafka's.
pub(crate) fn no_second_tls(graph: &Graph) -> Vec<String> {
    let has = |packages: &[String], name: &str| packages.iter().any(|package| package == name);
    let excepted = |name: &str| {
        name == OPENSSL
            && !has(&graph.usual, name)
            && graph.openssl_users.iter().all(|user| user == OPENSSL_USER)
    };
    let found = FOREIGN_TLS
        .iter()
        .filter(|name| has(&graph.whole, name) && !excepted(name));
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

    fn graph(whole: &[&str], usual: &[&str], users: &[&str]) -> Graph {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Graph {
            whole: owned(whole),
            usual: owned(usual),
            openssl_users: owned(users),
        }
    }

    #[test]
    fn second_tls_library_is_found() {
        let problems = |graph: &Graph| no_second_tls(graph).len();
        let one = ["rustls", "ring", "openssl-probe"];
        assert_eq!(problems(&graph(&one, &one, &[])), 0);
        let two = ["ring", "aws-lc-rs"];
        assert_eq!(problems(&graph(&two, &one, &[])), 1);
    }

    #[test]
    fn openssl_is_for_librdkafka_only_and_not_by_default() {
        let problems = |graph: &Graph| no_second_tls(graph).len();
        let with = ["ring", "rdkafka-sys", OPENSSL];
        let without = ["ring", "rdkafka-sys"];
        assert_eq!(problems(&graph(&with, &without, &[OPENSSL_USER])), 0);
        assert_eq!(problems(&graph(&with, &with, &[OPENSSL_USER])), 1);
        let others = [OPENSSL_USER, "native-tls"];
        assert_eq!(problems(&graph(&with, &without, &others)), 1);
    }

    #[test]
    fn graph_has_the_members() {
        let graph = Graph::read(&Workspace::find().unwrap()).unwrap();
        assert!(graph.whole.iter().any(|name| name == "xtask"));
        assert_eq!(graph.openssl_users, [OPENSSL_USER]);
    }
}
