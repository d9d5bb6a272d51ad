//! What a person sees of `cargo xtask integration`, on small workspaces made for it.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{terminate, workspace, xtask};

/// Whether it succeeded, and the lines that it printed.
fn integration(root: &Path, arguments: &[&str]) -> (bool, Vec<String>) {
    let output = xtask(root, &[&["integration"], arguments].concat())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    eprintln!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    (
        output.status.success(),
        text.lines().map(str::to_owned).collect(),
    )
}

/// Asserts a failed run with this closing line and a problem that has these words.
fn assert_fails(library: &str, closing: &str, problem: &str) {
    let root = workspace("outbox-core", library);
    let (passed, lines) = integration(root.path(), &[]);
    assert!(!passed);
    assert_eq!(lines.last().unwrap(), closing);
    assert!(
        lines.iter().any(|line| line.contains(problem)),
        "no `{problem}` in {lines:#?}"
    );
}

#[test]
fn unit_and_documentation_tests_are_counted() {
    let library =
        "//! ```\n//! assert_eq!(2, 1 + 1);\n//! ```\n#[test]\nfn a() {}\n#[test]\nfn b() {}\n";
    let root = workspace("outbox-core", library);
    let (passed, lines) = integration(root.path(), &[]);
    assert!(passed);
    assert_eq!(lines.last().unwrap(), "3 passed, 0 failed");

    let (passed, lines) = integration(root.path(), &["--", "a"]);
    assert!(passed);
    assert_eq!(lines.last().unwrap(), "1 passed, 0 failed");
    let (passed, lines) = integration(root.path(), &["--", "nothing_of_the_kind"]);
    assert!(!passed);
    assert_eq!(lines.last().unwrap(), "0 passed, 1 failed");
}

#[test]
fn failed_test_fails_the_run() {
    let library = "#[test]\nfn a() {}\n#[test]\nfn b() { assert_eq!(1, 2); }\n";
    assert_fails(library, "1 passed, 1 failed", "b ... FAILED");
}

#[test]
fn failed_example_fails_the_run() {
    let library = "//! ```\n//! assert_eq!(2, 1);\n//! ```\n#[test]\nfn a() {}\n";
    assert_fails(library, "1 passed, 1 failed", "outbox-core/src/lib.rs");
}

#[test]
fn crate_without_a_test_fails_the_run() {
    assert_fails("", "0 passed, 1 failed", "outbox-core: it ran no test");
}

#[test]
fn crash_fails_the_run() {
    let library = "#[test]\nfn a() { std::process::abort(); }\n";
    assert_fails(library, "0 passed, 1 failed", "signal: 6");
}

#[test]
fn compiler_error_fails_the_run() {
    assert_fails("fn", "0 passed, 1 failed", "the tests do not build");
}

#[test]
fn process_left_behind_fails_the_run_and_is_ended() {
    // A time that no other run of this test waits for.
    let seconds = format!("600.{}", std::process::id());
    // In a process group of its own, as a server would be.
    let library = format!(
        "#[test]\nfn a() {{\n    use std::os::unix::process::CommandExt;\n    \
         let mut command = std::process::Command::new(\"sleep\");\n    \
         command.arg(\"{seconds}\").process_group(0).spawn().unwrap();\n}}\n"
    );
    assert_fails(
        &library,
        "1 passed, 1 failed",
        &format!("left a process: sleep {seconds}"),
    );
    assert!(!is_running(&seconds));
}

#[test]
fn servers_are_told_to_the_tests_and_stopped_afterwards() {
    let library = "#[test]\nfn a() {\n    let url = std::env::var(\"OUTBOX_TEST_REDIS_URL\").unwrap();\n    \
        let address = url.trim_start_matches(\"redis://\").trim_end_matches('/');\n    \
        std::net::TcpStream::connect(address).unwrap();\n    println!(\"address={address}\");\n}\n";
    let root = workspace("outbox-redis", library);
    let (passed, lines) = integration(root.path(), &["--only", "redis", "--", "--nocapture"]);
    assert!(passed);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("outbox-redis ") && line.contains("redis "))
    );
    assert_eq!(lines.last().unwrap(), "1 passed, 0 failed");
    let address = lines
        .iter()
        .find_map(|line| line.split_once("address="))
        .unwrap()
        .1;
    assert!(std::net::TcpStream::connect(address).is_err(), "{address}");
}

/// With an `apt-get` that only says what it was asked, so nothing is installed by a test.
#[test]
fn missing_program_is_installed_or_named_with_its_package() {
    let root = workspace("outbox-redis", "");
    let programs = tempfile::tempdir().unwrap();
    let apt_get = programs.path().join("apt-get");
    fs::write(&apt_get, "#!/bin/sh\necho \"apt-get $*\"\n").unwrap();
    fs::set_permissions(&apt_get, fs::Permissions::from_mode(0o755)).unwrap();
    let services_up = |variables: &[(&str, &str)]| {
        let mut command = xtask(root.path(), &["services", "up", "--only", "redis"]);
        command
            .env("PATH", programs.path())
            .env_remove("OUTBOX_TEST_REDIS_BIN");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(!output.status.success());
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    };

    let text = services_up(&[]);
    assert!(text.contains("Redis is not installed"), "{text}");
    if rustix::process::geteuid().is_root() {
        assert!(
            text.contains("install -y --no-install-recommends redis-server"),
            "{text}"
        );
    } else {
        assert!(text.contains("apt-get install redis-server"), "{text}");
    }
    let text = services_up(&[("OUTBOX_TEST_REDIS_BIN", "/nowhere/redis-server")]);
    assert!(text.contains("/nowhere has no redis-server"), "{text}");
    assert!(!text.contains("install"), "{text}");
}

#[test]
fn signal_ends_the_tests_and_the_servers() {
    let library = "#[test]\nfn a() { std::thread::sleep(std::time::Duration::from_secs(600)); }\n";
    let root = workspace("outbox-redis", library);
    let mut command = xtask(root.path(), &["integration", "--only", "redis"]);
    let output = root.path().join("output");
    let file = fs::File::create(&output).unwrap();
    let mut run = command
        .stdout(file)
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while !is_in_unit_tests(&output) {
        assert!(run.try_wait().unwrap().is_none(), "it ended early");
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "the test did not start"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let server = server_process(root.path());
    assert!(server.exists());
    terminate(&run);
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(!server.exists(), "the server still runs");
    let text = fs::read_to_string(&output).unwrap();
    assert!(text.contains("interrupted: not everything ran"), "{text}");
}

/// The documentation's tests come first and may print the same lines.
fn is_in_unit_tests(output: &Path) -> bool {
    let text = fs::read_to_string(output).unwrap();
    text.split_once("--- outbox-redis")
        .is_some_and(|(_, after)| after.contains("running 1 test\n"))
}

/// The folder in `/proc` of the one server that the run started.
fn server_process(root: &Path) -> PathBuf {
    let text = fs::read_to_string(root.join("target/services/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pid = &state["services"]["redis"]["process"]["pid"];
    Path::new("/proc").join(pid.to_string())
}

/// Whether a process has the text in its command line.
fn is_running(text: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut commands = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    commands.any(|command| String::from_utf8_lossy(&command).contains(text))
}
