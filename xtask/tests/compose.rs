//! The services by Docker Compose, with a program that plays `docker`: it notes its arguments and
//! answers as told. What a real daemon does with them is not shown here.

mod support;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{terminate, workspace, xtask};

/// A workspace, a `docker` that plays, and what its containers would listen on.
struct Stage {
    root: TempDir,
    programs: TempDir,
    listener: TcpListener,
}

impl Stage {
    /// `scenes` are a shell pattern for the arguments and what the program does then; those of a
    /// daemon where all is well come after them.
    fn new(scenes: &[(&str, &str)]) -> Self {
        let stage = Self {
            root: workspace("outbox-redis", ""),
            programs: tempfile::tempdir().unwrap(),
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        fs::write(stage.root.path().join("compose.yaml"), "services: {}\n").unwrap();
        stage.play(scenes);
        stage
    }

    fn play(&self, scenes: &[(&str, &str)]) {
        let published = format!("echo 127.0.0.1:{}", self.port());
        let well = [
            ("info*", "echo 27.3.1"),
            ("compose?version", "echo Docker Compose version v2.29.7"),
            ("*port?postgres?5432", &published),
            ("*port?redis?6379", &published),
            ("*exec?-T?postgres?psql*", "echo '15.9 (Debian 15.9-1)'"),
            (
                "*exec?-T?redis?redis-cli*",
                r"printf 'redis_version:7.4.1\r\n'",
            ),
        ];
        let cases: Vec<_> = scenes
            .iter()
            .chain(&well)
            .map(|(pattern, action)| format!("{pattern}) {action};;"))
            .collect();
        let cases = cases.join("\n");
        let calls = self.programs.path().join("calls");
        let docker = self.programs.path().join("docker");
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> {}\ncase \"$*\" in\n{cases}\nesac\n",
            calls.display()
        );
        // Replaced in one step: it may be running.
        let new = self.programs.path().join("new");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, docker).unwrap();
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// The tool with `docker` and all programs of this machine.
    fn xtask(&self, arguments: &[&str]) -> Command {
        let mut command = xtask(self.root.path(), arguments);
        let path = std::env::var_os("PATH").unwrap();
        let folders =
            std::iter::once(self.programs.path().to_owned()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders).unwrap());
        command
    }

    fn services(&self, arguments: &[&str]) -> (bool, String) {
        text(
            &self
                .xtask(&[&["services"], arguments].concat())
                .output()
                .unwrap(),
        )
    }

    /// What `docker compose` was asked since the last call, without the project and the file,
    /// which are the same each time.
    fn calls(&self) -> Vec<String> {
        let path = self.programs.path().join("calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        let file = format!(
            "--file {} ",
            self.root.path().join("compose.yaml").display()
        );
        calls
            .lines()
            .filter_map(|call| call.strip_prefix("compose --project-name outbox-test-"))
            .map(|call| call.split_once(&file).unwrap().1.to_owned())
            .collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Also the private server of a failed test.
        let _ = self.xtask(&["services", "down"]).output();
    }
}

/// Whether it succeeded, and all that it said.
fn text(output: &Output) -> (bool, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8(text).unwrap();
    eprintln!("{text}");
    (output.status.success(), text)
}

const UP: &str = "up --detach --wait --wait-timeout 120";
/// Two whose answers the program plays.
const BOTH: &str = "postgres,redis";
const INFO: &str = "exec -T redis redis-cli INFO server";

#[test]
fn daemon_that_answers_gives_the_services_without_programs_of_this_machine() {
    let stage = Stage::new(&[]);
    let only_docker = |arguments: &[&str]| {
        let mut command = stage.xtask(&[&["services"], arguments].concat());
        command.env("PATH", stage.programs.path());
        text(&command.output().unwrap())
    };
    let port = stage.port();
    let (passed, said) = only_docker(&["up", "--only", BOTH]);
    assert!(passed);
    let postgres =
        format!("postgres 15.9 at postgres://postgres@127.0.0.1:{port}/postgres, Docker");
    let redis = format!("redis 7.4.1 at redis://127.0.0.1:{port}/, Docker");
    assert!(said.contains(&postgres) && said.contains(&redis), "{said}");
    assert_eq!(said.matches("(started)").count(), 2, "{said}");
    let asked = "exec -T postgres psql -XAtw -U postgres -c SHOW server_version";
    assert_eq!(
        stage.calls(),
        [
            &format!("{UP} postgres"),
            "port postgres 5432",
            asked,
            &format!("{UP} redis"),
            "port redis 6379",
            INFO,
        ]
    );

    let (passed, said) = only_docker(&["up", "--only", BOTH]);
    assert!(passed);
    assert_eq!(said.matches("(already up)").count(), 2, "{said}");
    let asked = ["port postgres 5432", asked, "port redis 6379", INFO];
    assert_eq!(stage.calls(), asked);
    let (passed, said) = only_docker(&["status", "--only", BOTH]);
    assert!(
        passed && said.contains(&postgres) && said.contains(&redis),
        "{said}"
    );
    let (passed, said) = only_docker(&["env", "--only", BOTH]);
    assert!(passed);
    let line = format!("export OUTBOX_TEST_REDIS_URL='redis://127.0.0.1:{port}/'");
    assert!(said.lines().any(|said| said == line), "{said}");
    stage.calls();

    let (passed, said) = only_docker(&["down", "--only", "redis"]);
    assert!(passed && said == "redis stopped\n", "{said}");
    assert_eq!(stage.calls(), ["rm --stop --force --volumes redis"]);
    let (passed, said) = only_docker(&["down"]);
    assert!(passed && said == "postgres stopped\n", "{said}");
    assert_eq!(stage.calls(), ["down --volumes --remove-orphans"]);
    let (passed, said) = only_docker(&["down"]);
    assert!(passed && said == "nothing to stop\n", "{said}");
    assert_eq!(stage.calls(), [""; 0]);
}

#[test]
fn without_docker_a_private_server_starts_and_an_explicit_choice_is_an_error() {
    let cases = [
        (
            "info*",
            "echo Cannot connect to the daemon >&2; exit 1",
            "Cannot connect",
        ),
        ("info*", "echo", "no Docker daemon answers"),
        (
            "compose?version",
            "echo compose is no command >&2; exit 1",
            "compose is no command",
        ),
    ];
    for (pattern, action, reason) in cases {
        let stage = Stage::new(&[(pattern, action)]);
        let (passed, said) = stage.services(&["up", "--only", "redis", "--via", "docker"]);
        assert!(!passed && said.contains(reason), "{said}");
        let (passed, said) = stage.services(&["up", "--only", "redis"]);
        assert!(passed && said.contains("pid "), "{said}");
        let (passed, said) = stage.services(&["down"]);
        assert!(passed && said == "redis stopped\n", "{said}");
        assert_eq!(stage.calls(), [""; 0]);
    }

    let stage = Stage::new(&[]);
    fs::remove_file(stage.programs.path().join("docker")).unwrap();
    let mut command = stage.xtask(&["services", "up", "--via", "docker"]);
    let (passed, said) = text(&command.env("PATH", stage.programs.path()).output().unwrap());
    assert!(
        !passed && said.contains("docker is not installed"),
        "{said}"
    );

    let stage = Stage::new(&[]);
    fs::remove_file(stage.root.path().join("compose.yaml")).unwrap();
    let mut command = stage.xtask(&["services", "up"]);
    command.env("OUTBOX_SERVICES_VIA", "docker");
    let (passed, said) = text(&command.output().unwrap());
    assert!(!passed && said.contains("there is no"), "{said}");
}

#[test]
fn local_is_local_though_a_daemon_answers() {
    let stage = Stage::new(&[]);
    let up = ["up", "--only", "redis", "--via"];
    let with = |via| stage.services(&[&up[..], &[via]].concat());
    let (passed, said) = with("local");
    assert!(passed && said.contains("pid "), "{said}");
    assert_eq!(stage.calls(), [""; 0]);
    let (passed, said) = with("docker");
    assert!(
        !passed && said.contains("redis runs without Docker"),
        "{said}"
    );
    let (passed, said) = with("auto");
    assert!(passed && said.contains("already up"), "{said}");
    assert!(stage.services(&["down"]).0);

    assert!(with("docker").0);
    let (passed, said) = with("local");
    assert!(
        !passed && said.contains("redis runs by Docker Compose"),
        "{said}"
    );
}

#[test]
fn container_that_does_not_come_is_removed_with_its_reason_and_log() {
    let unhealthy = "echo container redis-1 is unhealthy >&2; exit 1";
    let stage = Stage::new(&[
        ("*up?--detach*redis", unhealthy),
        ("*logs*redis", "echo Fatal: no such locale"),
    ]);
    let (passed, said) = stage.services(&["up", "--via", "docker"]);
    assert!(!passed);
    for reason in ["no redis to test with", "is unhealthy", "no such locale"] {
        assert!(said.contains(reason), "no `{reason}` in {said}");
    }
    // What came with it goes again too.
    let calls = stage.calls();
    let removals = [
        "rm --stop --force --volumes redis",
        "down --volumes --remove-orphans",
    ];
    assert_eq!(calls[calls.len() - 2..], removals);
    let (passed, said) = stage.services(&["down"]);
    assert!(passed && said == "nothing to stop\n", "{said}");

    let (passed, said) = stage.services(&["up", "--only", "redis"]);
    assert!(
        passed && said.contains("is unhealthy") && said.contains("pid "),
        "{said}"
    );
}

#[test]
fn port_that_cannot_be_reached_from_here_is_an_error() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let elsewhere = format!("echo {closed}");
    for (answer, reason) in [
        (
            "echo 0.0.0.0:32768",
            "`0.0.0.0:32768`, not at a loopback port",
        ),
        ("echo :0", "`:0`, not at a loopback port"),
        ("echo no port 6379 >&2; exit 1", "no port 6379"),
        (&elsewhere, "is the Docker daemon on another machine?"),
    ] {
        let stage = Stage::new(&[("*port?redis*", answer)]);
        let (passed, said) = stage.services(&["up", "--only", "redis", "--via", "docker"]);
        assert!(!passed && said.contains(reason), "no `{reason}` in {said}");
        assert_eq!(
            stage.calls().last().unwrap(),
            "down --volumes --remove-orphans"
        );
    }
}

#[test]
fn container_that_ended_is_started_again_and_one_that_stays_is_kept_in_mind() {
    let stage = Stage::new(&[]);
    let up = ["up", "--only", "redis"];
    assert!(stage.services(&up).0);
    stage.calls();
    let flag = stage.programs.path().join("started");
    let port = format!(
        "test -e {0} || exit 1; echo 127.0.0.1:{1}",
        flag.display(),
        stage.port()
    );
    let start = format!(": > {}", flag.display());
    stage.play(&[("*port?redis*", &port), ("*up?--detach*", &start)]);
    let (passed, said) = stage.services(&["status", "--only", "redis"]);
    assert!(!passed && said.contains("redis does not answer"), "{said}");
    let (passed, said) = stage.services(&up);
    assert!(passed && said.contains("(started)"), "{said}");
    assert!(stage.calls().contains(&format!("{UP} redis")));

    stage.play(&[("*down*", "echo daemon is gone >&2; exit 1")]);
    let (passed, said) = stage.services(&["down"]);
    assert!(!passed && said.contains("daemon is gone"), "{said}");
    stage.play(&[]);
    let (passed, said) = stage.services(&["down"]);
    assert!(passed && said == "redis stopped\n", "{said}");
}

#[test]
fn signal_while_a_container_starts_removes_it() {
    let stage = Stage::new(&[("*up?--detach*", "exec sleep 600")]);
    let mut command = stage.xtask(&["services", "up", "--only", "redis"]);
    let mut run = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let calls = stage.programs.path().join("calls");
    while !has(&calls, "up --detach") {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "it did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    terminate(&run);
    assert!(!run.wait().unwrap().success());
    assert_eq!(
        stage.calls().last().unwrap(),
        "down --volumes --remove-orphans"
    );
    assert!(stage.services(&["down"]).1.contains("nothing to stop"));
}

fn has(file: &Path, words: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.contains(words))
}

#[test]
fn integration_runs_on_containers_and_tells_the_tests_the_programs_too() {
    let stage = Stage::new(&[]);
    let library = format!(
        "#[test]\nfn a() {{\n    let is = |name| std::env::var(name).unwrap();\n    \
         assert_eq!(is(\"OUTBOX_TEST_REDIS_URL\"), \"redis://127.0.0.1:{}/\");\n    \
         assert!(std::path::Path::new(&is(\"OUTBOX_TEST_REDIS_BIN\")).is_file());\n}}\n",
        stage.port()
    );
    fs::write(stage.root.path().join("outbox-redis/src/lib.rs"), library).unwrap();
    let mut command = stage.xtask(&["integration", "--only", "redis", "--via", "docker"]);
    let (passed, said) = text(&command.output().unwrap());
    assert!(passed);
    assert!(
        said.contains("redis 7.4.1 (started by Docker Compose)"),
        "{said}"
    );
    assert!(said.contains("1 passed, 0 failed"), "{said}");
    assert_eq!(
        stage.calls().last().unwrap(),
        "down --volumes --remove-orphans"
    );
}
