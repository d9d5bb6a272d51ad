use std::path::Path;

use super::*;

/// Redis alone: it starts in milliseconds, and the rest is the same for every service.
fn redis_only() -> Vec<&'static dyn Service> {
    select(&["redis".to_owned()]).unwrap()
}

/// A folder for services that are stopped with their test, also when that fails.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A second panic here would hide the first.
        let _ = down(self.path(), &redis_only());
    }
}

fn process_of(folder: &Path) -> Option<Identity> {
    Some(State::read(folder).unwrap().services.get("redis")?.process)
}

#[test]
fn unknown_service_is_an_error_that_names_the_known() {
    let error = select(&["kafak".to_owned()]).err().unwrap().to_string();
    assert!(
        error.contains("kafak") && error.contains("postgres, redis, nats"),
        "{error}"
    );
}

#[test]
fn names_and_variables_are_distinct() {
    let mut seen = std::collections::BTreeSet::new();
    for service in ALL {
        assert!(seen.insert(service.name()));
        assert!(seen.insert(service.url_variable()));
    }
}

/// Without a look at this process's environment, where an integration run puts a URL.
fn up_redis(folder: &Path, url: Option<&str>) -> Server {
    let _lock = Lock::take(folder).unwrap();
    up_one(folder, redis_only()[0], url.map(str::to_owned), &Way::Local).unwrap()
}

#[test]
fn up_and_down_twice_change_nothing_the_second_time() {
    let folder = Folder::new();
    let first = up_redis(folder.path(), None);
    let again = up_redis(folder.path(), None);
    assert!(first.started && !again.started);
    assert_eq!((first.url, first.origin), (again.url, again.origin));
    assert!(first.version.contains('.'), "{}", first.version);
    let process = process_of(folder.path()).unwrap();
    assert!(process.is_alive());

    assert_eq!(down(folder.path(), &redis_only()).unwrap(), ["redis"]);
    assert_eq!(down(folder.path(), &redis_only()).unwrap(), [""; 0]);
    assert!(!process.is_alive());
    assert_eq!(process_of(folder.path()), None);
}

#[test]
fn server_of_the_environment_is_used_and_not_stopped() {
    let theirs = Folder::new();
    let server = up_redis(theirs.path(), None);
    let ours = Folder::new();
    let used = up_redis(ours.path(), Some(&server.url));
    assert_eq!(used.url, server.url);
    assert_eq!((used.origin, used.started), (Origin::Environment, false));
    assert_eq!(down(ours.path(), &redis_only()).unwrap(), [""; 0]);
    assert!(process_of(theirs.path()).unwrap().is_alive());
    down(theirs.path(), &redis_only()).unwrap();

    let lost = up_one(ours.path(), redis_only()[0], Some(server.url), &Way::Local).unwrap_err();
    let lost = format!("{lost:#}");
    assert!(
        lost.contains("OUTBOX_TEST_REDIS_URL does not answer"),
        "{lost}"
    );
}

#[test]
fn server_that_died_is_replaced() {
    let folder = Folder::new();
    let first = up_redis(folder.path(), None);
    let place = State::read(folder.path()).unwrap().services["redis"]
        .folder
        .clone();
    process_of(folder.path())
        .unwrap()
        .stop(Signal::KILL, STOP_LIMIT)
        .unwrap();
    assert!(place.exists());

    let second = up_redis(folder.path(), None);
    assert!(second.started);
    assert_ne!(second.origin, first.origin);
    assert!(!place.exists());
    assert_eq!(down(folder.path(), &redis_only()).unwrap(), ["redis"]);
}

#[test]
fn server_that_cannot_start_shows_its_log_and_leaves_nothing() {
    struct Broken;
    impl Service for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }
        fn url_variable(&self) -> &'static str {
            "OUTBOX_TEST_BROKEN_URL"
        }
        fn program_variable(&self) -> &'static str {
            "OUTBOX_TEST_BROKEN_BIN"
        }
        fn program(&self, programs: &Programs) -> PathBuf {
            programs.folder.clone()
        }
        fn packages(&self) -> &'static [&'static str] {
            &["broken"]
        }
        fn find(&self) -> Result<Programs> {
            Ok(Programs {
                folder: PathBuf::new(),
            })
        }
        fn start(&self, _: &Programs, _: &Path, _: u16, log: &Path) -> Result<Child> {
            let mut command = std::process::Command::new("sh");
            spawn(command.args(["-c", "echo no such locale >&2; exit 7"]), log)
        }
        fn url(&self, port: u16) -> String {
            format!("broken://127.0.0.1:{port}")
        }
        fn version(&self, _: &Programs, _: &str) -> Result<String> {
            bail!("it never answers")
        }
        fn stop_signal(&self) -> Signal {
            Signal::TERM
        }
        fn container(&self) -> Container {
            Container {
                port: 1,
                question: &["broken"],
                settings: vec![],
            }
        }
        fn read_version(&self, _: &str) -> Option<String> {
            None
        }
    }
    let folder = Folder::new();
    let error = format!(
        "{:#}",
        up(folder.path(), &[&Broken], &Way::Local).unwrap_err()
    );
    assert!(
        error.contains("no such locale") && error.contains("exit status: 7"),
        "{error}"
    );
    assert!(State::read(folder.path()).unwrap().services.is_empty());
}
