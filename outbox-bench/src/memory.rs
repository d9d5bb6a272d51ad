//! The program `outbox relay` as a process: its peak memory while it drains.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use outbox_core::Inspect;
use outbox_postgres::PgQueue;
use tokio::process::Command;

/// Builds the program as users do, and says where it is.
pub(crate) async fn build_program() -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "-p", "outbox-cli"])
        .status()
        .await?;
    ensure!(built.success(), "the program could not be built");
    let here = std::env::current_exe()?;
    let program = here
        .parent()
        .context("no folder of the benchmark")?
        .join("outbox");
    ensure!(
        program.exists(),
        "{} is missing after the build",
        program.display()
    );
    Ok(program)
}

/// Starts the relay, waits until the outbox is drained and returns the peak of its resident memory
/// in bytes (`VmHWM`).
pub(crate) async fn peak(
    program: &PathBuf,
    store: &PgQueue,
    postgres: &str,
    redis: &str,
) -> Result<u64> {
    let mut relay = Command::new(program)
        .args(["relay", "--publisher", "redis"])
        .env("OUTBOX__STORE__URL", postgres)
        .env("OUTBOX__ROUTES__DEFAULT__PUBLISHER__URL", redis)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = relay.id().context("the relay has no pid")?;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(status) = relay.try_wait()? {
            anyhow::bail!("the relay ended early: {status}");
        }
        let found = store.inspect(1).await?;
        if found.pending.value + found.in_flight.value == 0 {
            break;
        }
    }
    let peak = of_process(pid, "VmHWM:")?;
    relay.kill().await?;
    Ok(peak)
}

/// What the system says of the process's memory under this name, in bytes.
pub(crate) fn of_process(pid: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let line = line.with_context(|| format!("no {name}"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}
