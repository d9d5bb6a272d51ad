//! Scripts for shells.

use crate::support::{bare, run};

#[test]
fn each_shell_gets_a_script_with_the_commands_and_bash_takes_it() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let mut command = bare(&["completions", shell]);
        // A configuration that can't be read is no hindrance.
        command.env("OUTBOX_CONFIG", "/no/such/file");
        let script = run(command, b"").success();
        for word in [
            "migrate", "relay", "status", "dead", "requeue", "enqueue", "--watch",
        ] {
            // Fish writes its long options without the dashes.
            let word = word.trim_start_matches("--");
            assert!(script.contains(word), "{shell} has no {word}");
        }
        if shell == "bash" {
            let mut check = std::process::Command::new("bash");
            check.arg("-n");
            let ended = run(check, script.as_bytes());
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        }
    }
    let ended = run(bare(&["completions", "tcsh"]), b"");
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
