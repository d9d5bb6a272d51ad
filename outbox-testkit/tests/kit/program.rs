//! A child process, its log and its end.

use std::{
    io::Read as _,
    process::{Command, Stdio},
    time::Duration,
};

use outbox_testkit::{block_on, eventually, program::Program};
use rustix::process::{Pid, Signal, test_kill_process};

const PATIENCE: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    command
}

fn until_logged(program: &Program, text: &str) {
    let asked = eventually(PATIENCE, async || program.logged(text).then_some(()));
    assert!(block_on(asked).is_some(), "{:?}", program.log());
}

#[test]
fn a_program_tells_its_log_and_its_end() {
    let script = "trap 'echo stopped >&2; exit 7' TERM; echo out; echo ready >&2
        while :; do sleep 0.01; done";
    let mut program = Program::start(shell(script));
    until_logged(&program, "ready");
    assert!(!program.logged("stopped"));
    assert!(program.is_running());
    program.signal(Signal::TERM);
    assert_eq!(program.wait().code(), Some(7));
    assert!(!program.is_running());
    assert_eq!(program.log(), ["ready", "stopped"]);
    let mut out = String::new();
    let mut pipe = program.take_stdout().unwrap();
    pipe.read_to_string(&mut out).unwrap();
    assert_eq!(out, "out\n");
}

#[test]
fn a_busy_program_uses_processor_time() {
    let program = Program::start(shell("while :; do :; done"));
    let busy = async || (program.processor_time() >= Duration::from_millis(50)).then_some(());
    assert!(block_on(eventually(PATIENCE, busy)).is_some());
}

#[test]
fn a_dropped_program_is_gone() {
    let program = Program::start(shell("echo $$ >&2; exec sleep 60"));
    until_logged(&program, "");
    let pid: i32 = program.log()[0].parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    test_kill_process(pid).unwrap();
    drop(program);
    assert!(test_kill_process(pid).is_err(), "it still runs");
}
