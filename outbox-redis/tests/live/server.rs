//! A private Redis: own port, own folder, killed at the end.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) struct Server {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Server {
    /// Starts one that writes everything to disk before it answers.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let child = spawn(folder.path(), port, settings);
        let server = Self {
            child,
            folder,
            port,
        };
        server.ready().await;
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again after a kill, on the same port and data; does not wait for it.
    pub(crate) fn start_again(&mut self, settings: &[&str]) {
        self.child = spawn(self.folder.path(), self.port, settings);
    }

    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.start_again(&[]);
        self.ready().await;
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// A connection of the test's own.
    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        super::support::connection(&self.url()).await
    }

    async fn ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let client = redis::Client::open(self.url()).unwrap();
        loop {
            let connection = client.get_multiplexed_async_connection().await;
            if let Ok(mut connection) = connection
                && redis::cmd("PING").exec_async(&mut connection).await.is_ok()
            {
                return;
            }
            assert!(Instant::now() < deadline, "redis-server does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A port on which nobody listens just now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port()
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed may leave it stopped or dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &std::path::Path, port: u16, settings: &[&str]) -> Child {
    let program = std::env::var("OUTBOX_TEST_REDIS_BIN").unwrap_or_else(|_| "redis-server".into());
    Command::new(&program)
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(["--appendfsync", "always", "--loglevel", "warning"])
        .args(["--port", &port.to_string()])
        .arg("--dir")
        .arg(folder)
        .args(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} (OUTBOX_TEST_REDIS_BIN): {error}"))
}
