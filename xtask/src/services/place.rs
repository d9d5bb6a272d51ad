//! Where the data of a server lies.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

/// Lines of a log that an error shows.
const LAST_LINES: usize = 20;

/// Makes a new empty folder with this name for the data of a server: below `folder`, or below the system's
/// folder for temporary files when an unprivileged server could not enter `folder`.
///
/// The folder can be entered by everybody; what a server makes inside has its own permissions.
pub(crate) fn make(folder: &Path, name: &str) -> Result<PathBuf> {
    let mut candidates = vec![folder.to_owned()];
    if geteuid().is_root() {
        // Servers such as PostgreSQL refuse to run as root and run as another user.
        candidates.push(std::env::temp_dir());
        candidates.retain(|candidate| everybody_can_enter(candidate));
    }
    let Some(parent) = candidates.first() else {
        bail!(
            "an unprivileged server can enter neither {} nor {}: give o+x to the folders above",
            folder.display(),
            std::env::temp_dir().display(),
        );
    };
    let parent = std::path::absolute(parent).context("the current folder is gone")?;
    let place = parent.join(format!("outbox-{name}-{}", std::process::id()));
    fs::DirBuilder::new()
        .mode(0o711)
        .create(&place)
        // The umask may have taken a bit away.
        .and_then(|()| fs::set_permissions(&place, fs::Permissions::from_mode(0o711)))
        .with_context(|| format!("cannot make {}", place.display()))?;
    Ok(place)
}

/// Removes what [`make`] made; it may be gone already.
pub(crate) fn remove(place: &Path) -> Result<()> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", place.display()))
        }
        _ => Ok(()),
    }
}

/// The end of a log, for an error message.
pub(crate) fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

fn everybody_can_enter(folder: &Path) -> bool {
    let Ok(folder) = fs::canonicalize(folder) else {
        return false;
    };
    folder.ancestors().all(|folder| {
        fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_folder_above_is_noticed() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let set = |mode| fs::set_permissions(outer.path(), fs::Permissions::from_mode(mode));
        set(0o711).unwrap();
        assert!(everybody_can_enter(&inner));
        set(0o700).unwrap();
        assert!(!everybody_can_enter(&inner));
    }

    #[test]
    fn root_moves_the_data_out_of_a_closed_folder() {
        let closed = tempfile::tempdir().unwrap();
        fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let place = make(closed.path(), "unit").unwrap();
        assert_eq!(place.starts_with(closed.path()), !geteuid().is_root());
        remove(&place).unwrap();
        remove(&place).unwrap();
        assert!(!place.exists());
    }
}
