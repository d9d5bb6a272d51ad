//! The test binary as a process of its own, for relays that must die.

use std::process::Command;

use super::program::clean;

/// Set in the child only; its value is what the test hands over.
const ROLE: &str = "OUTBOX_SYSTEM_CHILD";

/// What the parent handed over; `None` in the test itself.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A command that runs this one test again, with [`role`] answering `handed`. `module` is the
/// test's `module_path!()`.
pub(crate) fn again(module: &str, test: &str, handed: &str) -> Command {
    let module = module.split_once("::").expect("a module in the crate").1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    clean(&mut command)
        .args([&format!("{module}::{test}"), "--exact", "--nocapture"])
        .env(ROLE, handed)
        .env("RUST_BACKTRACE", "0");
    command
}

/// Log lines on standard error, as the program writes them.
pub(crate) fn log() {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
}
