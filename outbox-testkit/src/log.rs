//! What this process logs, to be looked at.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{Dispatch, Level, subscriber::DefaultGuard};

/// With one subscriber in the process, the thread that comes to a line first decides for all threads
/// whether it is written; that of a test without a subscriber says no. With two, all are asked.
static SECOND: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));

/// Lines of a log.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// What is logged by this thread, at info and above, goes here while the guard lives.
    pub fn follow(&self) -> DefaultGuard {
        self.follow_at(Level::INFO)
    }

    /// The same, at this level and above.
    pub fn follow_at(&self, level: Level) -> DefaultGuard {
        LazyLock::force(&SECOND);
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || lines.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// All of them.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines that have this text.
    pub fn with(&self, text: &str) -> Vec<String> {
        let all = self.text();
        let found = all.lines().filter(|line| line.contains(text));
        found.map(ToOwned::to_owned).collect()
    }
}

/// The number in `name=…`.
pub fn number(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!(" {name}=")).expect(name);
    rest.split(' ').next().unwrap().parse().unwrap()
}
