//! The demo's database file, and how nothing of it is left behind.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use outbox_sqlite::SqliteConfig;

use crate::exit::Failure;

/// How often, and with which pause, removing is tried.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A file that is removed when this is dropped, unless it is kept.
pub(super) struct Place {
    url: String,
    remains: Vec<PathBuf>,
    kept: bool,
}

impl Place {
    /// A file in a new folder among the system's temporary ones.
    pub(super) fn temporary() -> Result<Self, Failure> {
        let above = std::env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix("outbox-demo-")
            .tempdir_in(&above)
            .map_err(|error| {
                Failure::failed(format!(
                    "demo: make a folder in {}: {} — set TMPDIR to a folder that can be written, \
                     or name the file: demo --keep FILE",
                    above.display(),
                    reason(&error)
                ))
            })?
            .keep();
        let file = folder.join("outbox.db");
        // From here on the folder has an owner.
        let mut place = Self {
            url: String::new(),
            remains: vec![folder],
            kept: false,
        };
        place.url = url(&file)?;
        Ok(place)
    }

    /// This file, which must not exist yet.
    pub(super) fn named(file: &Path) -> Result<Self, Failure> {
        let whole = absolute(file)?;
        let url = url(&whole)?;
        let made = fs::File::create_new(&whole);
        made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::usage(format!(
                "demo: {} exists already and is not overwritten — name another file, or remove it",
                file.display()
            )),
            _ => Failure::failed(format!(
                "demo: make {}: {} — name a file in a folder that can be written",
                file.display(),
                reason(&error)
            )),
        })?;
        // SQLite's own files beside it.
        let beside = |end: &str| {
            let mut name = OsString::from(&whole);
            name.push(end);
            PathBuf::from(name)
        };
        Ok(Self {
            remains: vec![whole.clone(), beside("-wal"), beside("-shm")],
            url,
            kept: false,
        })
    }

    /// The store's URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The file.
    pub(super) fn file(&self) -> &str {
        self.url.strip_prefix("sqlite:").unwrap_or(&self.url)
    }

    /// Leaves it where it is.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

/// The same from every folder, so that printed commands work wherever they are typed.
fn absolute(file: &Path) -> Result<PathBuf, Failure> {
    let name = file
        .file_name()
        .ok_or_else(|| Failure::usage(format!("demo: {} names no file", file.display())))?;
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|error| {
        Failure::failed(format!(
            "demo: open the folder {}: {} — the folder must exist",
            folder.display(),
            reason(&error)
        ))
    })?;
    Ok(folder.join(name))
}

fn url(file: &Path) -> Result<String, Failure> {
    let Some(path) = file.to_str() else {
        return Err(Failure::usage(format!(
            "demo: {} is no UTF-8, as a URL must be — name another file",
            file.display()
        )));
    };
    let url = format!("sqlite:{path}");
    SqliteConfig::new(&url).validate()?;
    Ok(url)
}

/// What the system said, without the path, which stands beside it.
fn reason(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(
        || error.to_string(),
        |code| io::Error::from_raw_os_error(code).to_string(),
    )
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for path in &self.remains {
            remove(path);
        }
    }
}

/// A connection that was dropped closes on a thread of its own, and may make or remove a file of its
/// own while the folder is emptied.
fn remove(path: &Path) {
    for _ in 0..TRIES {
        let removed = if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(PAUSE),
            // Not found may be a file inside that went by itself.
            _ if !path.exists() => return,
            _ => {}
        }
    }
    eprintln!("warning: demo: {} can't be removed", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_with_all_that_stands_beside_it_unless_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a b.db");
        let place = Place::named(&file).unwrap();
        fs::write(folder.path().join("a b.db-wal"), "x").unwrap();
        drop(place);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        Place::named(&file).unwrap().keep();
        assert!(file.exists());

        let place = Place::temporary().unwrap();
        let folder = PathBuf::from(place.file()).parent().unwrap().to_owned();
        assert!(folder.is_dir());
        fs::write(place.file(), "x").unwrap();
        drop(place);
        assert!(!folder.exists());
    }

    #[test]
    fn a_file_that_is_there_or_can_not_be_named_is_refused_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine");
        fs::write(&file, "mine").unwrap();
        for (name, said) in [
            ("mine", "exists already and is not overwritten"),
            ("missing/a.db", "the folder must exist"),
            ("..", "names no file"),
            ("a?b", "parameters"),
        ] {
            let refused = Place::named(&folder.path().join(name)).err().unwrap();
            assert!(refused.to_string().contains(said), "{refused}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
