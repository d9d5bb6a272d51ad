//! The files that the rules look at.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// What is generated or not ours.
const SKIPPED_FOLDERS: &[&str] = &["target", ".git", "node_modules"];

/// The text files of the workspace by their path from its root; others have no text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads all files below the root.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let context = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(context)? {
            let entry = entry.with_context(context)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().with_context(context)?;
            if kind.is_dir() {
                if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                    self.read_folder(&entry.path(), &format!("{path}/"))?;
                }
            } else if kind.is_file() {
                let bytes = fs::read(entry.path())
                    .with_context(|| format!("cannot read {}", entry.path().display()))?;
                self.files.insert(path, String::from_utf8(bytes).ok());
            }
        }
        Ok(())
    }

    /// A tree of these files, for the rules' own tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let entry = |(path, text): &(&str, &str)| ((*path).to_owned(), Some((*text).to_owned()));
        Self {
            files: files.iter().map(entry).collect(),
        }
    }

    /// Paths and texts of all text files.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether there is a file at this path, or a folder with files.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.files_below(path).next().is_some()
    }

    /// The paths of the files below a folder.
    pub(crate) fn files_below(&self, folder: &str) -> impl Iterator<Item = &str> {
        let prefix = format!("{}/", folder.trim_end_matches('/'));
        self.files
            .keys()
            .map(String::as_str)
            .filter(move |path| path.starts_with(&prefix))
    }

    /// Whether a path ends with these whole parts, as `src/lib.rs` does anywhere.
    pub(crate) fn has_ending(&self, ending: &str) -> bool {
        let ending = format!("/{ending}");
        self.files.keys().any(|path| path.ends_with(&ending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_folders_and_binaries_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        for (path, bytes) in [
            ("a/b.rs", &b"x"[..]),
            ("target/c.rs", b"x"),
            ("d.png", b"\xff"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let tree = Tree::read(root.path()).unwrap();
        assert_eq!(tree.texts().collect::<Vec<_>>(), [("a/b.rs", "x")]);
        assert!(tree.has("a") && tree.has("a/b.rs") && tree.has("d.png") && !tree.has("b.rs"));
        assert!(tree.has_ending("b.rs") && !tree.has_ending(".rs"));
    }
}
