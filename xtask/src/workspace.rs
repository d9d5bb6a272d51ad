//! Where the workspace is and which crates it has, as cargo tells it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command;

/// The workspace this tool was built in.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// The members, in the order of their names.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// What cargo builds of a package.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) doctest: bool,
}

/// A direct dependency as the manifest declares it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Workspace {
    /// Asks cargo. With `--no-deps` it lists the members only.
    pub(crate) fn find() -> Result<Self> {
        let mut cargo = cargo();
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
        if let Some(folder) = std::env::var_os("CARGO_MANIFEST_DIR") {
            cargo.current_dir(folder);
        }
        let text = command::output(&mut cargo)?;
        let metadata: Metadata =
            serde_json::from_str(&text).context("cargo metadata printed something unexpected")?;
        let mut packages = metadata.packages;
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            root: metadata.workspace_root,
            target: metadata.target_directory,
            packages,
        })
    }

    /// The folder with the services' state, logs and data.
    pub(crate) fn services_folder(&self) -> PathBuf {
        self.target.join("services")
    }

    /// The folder with programs that were fetched.
    pub(crate) fn tools_folder(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// A cargo that works in the root of the workspace.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = cargo();
        cargo.current_dir(&self.root);
        cargo
    }
}

impl Package {
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }

    /// The name of the library if rustdoc tests it, as its `Doc-tests` heading prints it.
    pub(crate) fn doctested_library(&self) -> Option<String> {
        self.targets
            .iter()
            .find(|target| target.doctest && target.kind.iter().any(|kind| kind.ends_with("lib")))
            .map(|target| target.name.replace('-', "_"))
    }
}

/// The cargo that runs this tool, without what `cargo run` told this tool about itself: a build
/// script that reads such a variable would be run again each time.
fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_and_sorted() {
        let workspace = Workspace::find().unwrap();
        let names: Vec<_> = workspace.packages.iter().map(|p| p.name.as_str()).collect();
        assert!(names.contains(&"xtask"), "{names:?}");
        assert!(names.is_sorted(), "{names:?}");
        assert!(workspace.root.join("Cargo.toml").is_file());
    }

    #[test]
    fn library_name_is_the_one_in_the_doc_test_heading() {
        let target = |kind: &str| Target {
            name: "outbox-core".into(),
            kind: vec![kind.into()],
            doctest: true,
        };
        let package = |kind| Package {
            id: String::new(),
            name: "outbox-core".into(),
            version: "0.1.0".into(),
            manifest_path: "/x/outbox-core/Cargo.toml".into(),
            targets: vec![target(kind)],
            dependencies: vec![],
        };
        assert_eq!(
            package("lib").doctested_library().as_deref(),
            Some("outbox_core")
        );
        assert_eq!(package("bin").doctested_library(), None);
    }
}
