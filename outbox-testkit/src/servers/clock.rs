//! A wrong clock for programs and servers.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use time::Duration;

use super::find;

/// Where libfaketime shares its state with the children of a process.
const SHARED_MEMORY: &str = "/dev/shm";

/// A wall clock that is wrong by as much as the test says, and may be stepped while it is read; time
/// that is waited for (the monotonic clock) passes as ever. Processes see it that are started with
/// its [`environment`](Self::environment); they must end before it is dropped.
///
/// It is libfaketime: each look at the clock reads a file, which costs tens of microseconds.
#[derive(Debug)]
pub struct FakeClock {
    library: PathBuf,
    folder: TempDir,
}

impl FakeClock {
    /// A clock that is ahead of the machine's by so much; behind it when that is negative. Whole
    /// seconds.
    ///
    /// # Errors
    /// No library (the message names the package and the variable to set), or no place to write.
    pub fn ahead(by: Duration) -> io::Result<Self> {
        let clock = Self {
            library: find::faketime()?,
            folder: tempfile::Builder::new().prefix("outbox-clock-").tempdir()?,
        };
        // PostgreSQL's user reads it too.
        fs::set_permissions(clock.folder.path(), fs::Permissions::from_mode(0o755))?;
        clock.step_to(by)?;
        Ok(clock)
    }

    /// Steps it, at once for everybody who reads it.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn step_to(&self, ahead: Duration) -> io::Result<()> {
        let next = self.folder.path().join("next");
        fs::write(&next, format!("{:+}\n", ahead.whole_seconds()))?;
        fs::set_permissions(&next, fs::Permissions::from_mode(0o644))?;
        // Nobody may read half of it.
        fs::rename(next, self.file())
    }

    /// What a process must have in its environment from its start.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("LD_PRELOAD", self.library.clone().into()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            // Times of files stay as they are.
            ("NO_FAKE_STAT", "1".into()),
        ]
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ahead")
    }
}

impl Drop for FakeClock {
    fn drop(&mut self) {
        // Killed processes leave it, under their pid; a later process of that pid would not start.
        for entry in fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(is_left_behind) {
                // Another clock that is dropped now may have done it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether a name in [`SHARED_MEMORY`] is libfaketime's and its process is gone.
fn is_left_behind(name: &str) -> bool {
    ["faketime_shm_", "sem.faketime_sem_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix)?.parse::<u32>().ok())
        .is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}
