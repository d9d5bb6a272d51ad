//! The state file: which servers this tool started, so that it stops those and no other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::process::Identity;
use crate::services::compose::Project;

const FILE: &str = "state.json";

/// The servers that were started and not yet stopped, by the name of the service.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// Those that run as processes of this machine.
    pub(crate) services: BTreeMap<String, Running>,
    /// Those that run by Docker Compose.
    #[serde(default)]
    pub(crate) composed: BTreeMap<String, Project>,
}

/// A server that was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) url: String,
    pub(crate) process: Identity,
    /// Where its data is: not always below the state file.
    pub(crate) folder: PathBuf,
}

impl State {
    /// What the file says; nothing runs when there is none.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let file = folder.join(FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", file.display()))
    }

    /// Replaces the file in one step: a reader sees the old or the new one.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let file = folder.join(FILE);
        let new = folder.join("state.json.new");
        let text = serde_json::to_string_pretty(self).context("cannot write the state as JSON")?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

/// Held while servers start or stop: a second tool waits. Given back when dropped, or by the
/// kernel when the tool dies.
pub(crate) struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl Lock {
    /// Waits for the lock on the folder's services, and makes the folder.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        Self::named(
            folder,
            "lock",
            "another run starts or stops the services: waiting",
        )
    }

    /// Waits for a lock with this name, printing `waiting` first when it is taken.
    pub(crate) fn named(folder: &Path, name: &str, waiting: &str) -> Result<Self> {
        let path = folder.join(name);
        let context = || format!("cannot lock {}", path.display());
        fs::create_dir_all(folder).with_context(context)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(context)?;
        if file.try_lock().is_err() {
            eprintln!("{waiting}");
            file.lock().with_context(context)?;
        }
        Ok(Self(file))
    }
}
