//! A database of its own for each test, and the program as a child process.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outbox_testkit::program::Program;
use redis::Commands;
use rustix::{
    fs::{Mode, OFlags},
    process::Signal,
    pty,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

/// How long anything may take that the test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Case creds-in-log: as it is, and as it stands in a URL.
pub(crate) const PASSWORD: &str = "p@ss:w/ord%21";
pub(crate) const PASSWORD_ENCODED: &str = "p%40ss%3Aw%2Ford%2521";

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run the tests by `cargo xtask integration`"))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// Runs statements on the database of this URL.
pub(crate) fn sql(url: &str, statements: &str) {
    block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
    });
}

/// A database that ends with the test, and topics that do.
pub(crate) struct Place {
    name: String,
    folder: tempfile::TempDir,
}

impl Place {
    /// An empty database.
    pub(crate) fn empty() -> Self {
        let name = format!("outbox_cli_{}", Uuid::new_v4().simple());
        sql(&server(), &format!("CREATE DATABASE {name}"));
        Self {
            name,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A database with the schema, made by the program.
    pub(crate) fn migrated() -> Self {
        let place = Self::empty();
        place.outbox(&["migrate"]).success();
        place
    }

    /// Its URL, with this user and password in place of the server's.
    pub(crate) fn url_as(&self, user: &str) -> String {
        let url = self.url();
        let (scheme, rest) = url.split_once("://").unwrap();
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("{scheme}://{user}@{host}")
    }

    pub(crate) fn url(&self) -> String {
        database_url(&server(), &self.name)
    }

    pub(crate) fn database(&self) -> &str {
        &self.name
    }

    pub(crate) fn sql(&self, statements: &str) {
        sql(&self.url(), statements);
    }

    /// Refuses connections to this database and ends those there are, or lets them again.
    pub(crate) fn let_in(&self, is_open: bool) {
        let name = &self.name;
        sql(
            &server(),
            &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {is_open}"),
        );
        if !is_open {
            sql(
                &server(),
                &format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
                ),
            );
        }
    }

    /// The one number that the query gives.
    pub(crate) fn number(&self, query: &str) -> i64 {
        block_on(async {
            let mut connection = PgConnection::connect(&self.url()).await.unwrap();
            let row = sqlx::query(AssertSqlSafe(query))
                .fetch_one(&mut connection)
                .await
                .unwrap();
            row.get(0)
        })
    }

    /// A topic that no other test uses.
    pub(crate) fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// A file of this text.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The program with this database as its store and nothing of the test's own environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bare(arguments);
        command.env("OUTBOX__STORE__URL", self.url());
        command
    }

    /// Runs it to its end.
    pub(crate) fn outbox(&self, arguments: &[&str]) -> Ended {
        run(self.command(arguments), b"")
    }

    /// Runs it with this on its standard input.
    pub(crate) fn outbox_with(&self, arguments: &[&str], input: &[u8]) -> Ended {
        run(self.command(arguments), input)
    }

    /// Starts a relay to the test's Redis.
    pub(crate) fn relay(&self, arguments: &[&str]) -> Running {
        let mut all = vec!["relay", "--http", "127.0.0.1:0"];
        all.extend(arguments);
        let mut command = self.command(&all);
        command.env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", redis_url());
        Running::start(command)
    }

    /// Waits until this query gives this number.
    pub(crate) fn wait_for(&self, query: &str, expected: i64) {
        let mut last = None;
        wait(&format!("{query} = {expected}"), || {
            last = Some(self.number(query));
            last == Some(expected)
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let keys: Vec<String> = redis().keys(format!("{}*", self.name)).unwrap_or_default();
        if !keys.is_empty() {
            let _: redis::RedisResult<()> = redis().del(keys);
        }
        sql(
            &server(),
            &format!("DROP DATABASE {} WITH (FORCE)", self.name),
        );
    }
}

fn server() -> String {
    variable("OUTBOX_TEST_POSTGRES_URL")
}

fn database_url(server: &str, database: &str) -> String {
    let (scheme, rest) = server.split_once("://").unwrap();
    let host = rest.split(['/', '?']).next().unwrap();
    format!("{scheme}://{host}/{database}")
}

pub(crate) fn redis_url() -> String {
    variable("OUTBOX_TEST_REDIS_URL")
}

pub(crate) fn amqp_url() -> String {
    variable("OUTBOX_TEST_AMQP_URL")
}

pub(crate) fn kafka_url() -> String {
    variable("OUTBOX_TEST_KAFKA_URL")
}

pub(crate) fn redis() -> redis::Connection {
    redis::Client::open(redis_url())
        .unwrap()
        .get_connection()
        .unwrap()
}

/// The program without any setting.
pub(crate) fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OUTBOX_") && name != "OUTBOX_TEST_RUN" {
            command.env_remove(name);
        }
    }
    command
}

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// It must have ended well; gives what it printed.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// It must have failed with this code and one line that says all of this; gives the line.
    #[track_caller]
    pub(crate) fn failure(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let lines: Vec<_> = self.stderr.lines().collect();
        let [line] = lines[..] else {
            panic!("not one line: {self:?}")
        };
        assert!(line.starts_with("error: "), "{line}");
        for part in parts {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        line.to_owned()
    }
}

/// A terminal: the end of whoever looks at it, and that of the program.
pub(crate) fn terminal() -> (OwnedFd, OwnedFd) {
    let outside = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
    pty::grantpt(&outside).unwrap();
    pty::unlockpt(&outside).unwrap();
    let name = pty::ptsname(&outside, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let inside = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
    (outside, inside)
}

/// Runs the command with its standard error on a terminal until that shows this, and to a good end.
pub(crate) fn shows_a_bar(mut command: Command, shown: impl Fn(&str) -> bool) {
    let (outside, inside) = terminal();
    command
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(inside));
    let mut child = command.spawn().unwrap();
    drop(command);
    let seen = Seen::read(File::from(outside));
    seen.wait_for("the bar", shown);
    assert!(child.wait().unwrap().success());
}

/// What a process writes, as it comes.
pub(crate) struct Seen(Arc<Mutex<String>>);

impl Seen {
    /// Reads until the other end closes.
    pub(crate) fn read(mut from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let more = Arc::clone(&text);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose other end has closed answers with an error.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let part = String::from_utf8_lossy(&bytes[..count]);
                more.lock().unwrap().push_str(&part);
            }
        });
        Self(text)
    }

    /// All so far.
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    /// Waits until it fits.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, mut fits: impl FnMut(&str) -> bool) {
        wait(what, || fits(&self.text()));
    }
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command, input: &[u8]) -> Ended {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that does not read its input closes the pipe; that is no failure of the test.
    let _ = child.stdin.take().unwrap().write_all(input);
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let status = ended(&mut child, PATIENCE);
    Ended {
        code: status.code(),
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    })
}

fn ended(child: &mut Child, patience: Duration) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > patience {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the program did not end within {patience:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A relay at work, and the waiting for it.
pub(crate) struct Running(Program);

impl Running {
    /// Starts it; its standard output is a pipe that the test may take.
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        Self::start_as_it_is(command)
    }

    /// Starts it; its standard output goes where the command says.
    pub(crate) fn start_as_it_is(command: Command) -> Self {
        Self(Program::start(command))
    }

    /// The pipe of its standard output; once.
    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.0.take_stdout().unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Time of processors that it used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        self.0.processor_time()
    }

    /// What it wrote to standard error so far.
    pub(crate) fn log(&self) -> String {
        let lines = self.0.log();
        lines
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect()
    }

    /// Waits for a text in its log.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait(&format!("{text:?} in the log"), || self.0.logged(text));
    }

    /// Waits for its end; gives code and log.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        wait("the end of the program", || !self.0.is_running());
        let status = self.0.wait();
        (status.code(), self.log())
    }

    /// Stops it as a supervisor does; it must drain and end well.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let (code, log) = self.end();
        assert_eq!(code, Some(0), "{log}");
        log
    }

    /// An answer of its HTTP server: status and body.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.wait_for_log("serving /metrics");
        self.0.get(path)
    }
}

/// Waits until it holds.
#[track_caller]
pub(crate) fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The entries of a stream in its order, each with its fields.
pub(crate) fn entries(topic: &str) -> Vec<Vec<(String, String)>> {
    let range = redis::cmd("XRANGE")
        .arg(topic)
        .arg("-")
        .arg("+")
        .query(&mut redis());
    let entries: Vec<(String, Vec<(String, String)>)> = range.unwrap();
    entries.into_iter().map(|(_, fields)| fields).collect()
}

/// The ids of the events in a stream, in its order.
pub(crate) fn stream(topic: &str) -> Vec<String> {
    let entries = entries(topic).into_iter();
    entries
        .map(|fields| field(&fields, "event-id").to_owned())
        .collect()
}

/// A field of an entry.
pub(crate) fn field<'a>(fields: &'a [(String, String)], name: &str) -> &'a str {
    let found = fields.iter().find(|(field, _)| field == name);
    found.map_or_else(|| panic!("no {name} in {fields:?}"), |(_, value)| value)
}

/// `count` lines for `enqueue --stdin`.
pub(crate) fn lines(topic: &str, count: usize) -> String {
    let line =
        |n| format!("{{\"topic\":\"{topic}\",\"type\":\"T\",\"key\":\"k{n}\",\"payload\":{n}}}\n");
    (0..count).map(line).collect()
}

/// A path as text, for arguments.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}
