//! Scripts for shells.

use crate::support::{bare, run};

/// Takes the script, and asks for what `outbox st` may become.
const BASH_COMPLETES: &str = r#"
    eval "$(cat)" && complete -p outbox >/dev/null || exit
    COMP_WORDS=(outbox st) COMP_CWORD=1
    _outbox outbox st outbox && echo "${COMPREPLY[*]}"
"#;

#[test]
fn each_shell_gets_a_script_with_the_commands_and_bash_completes_by_it() {
    for (shell, registration) in [
        ("bash", "-F _outbox "),
        ("zsh", "#compdef outbox\n"),
        ("fish", "complete -c outbox "),
        ("elvish", "arg-completer[outbox]"),
        ("powershell", "-CommandName 'outbox'"),
    ] {
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
        assert!(script.contains(registration), "{shell}: {registration}");
        if shell == "bash" {
            let mut asked = std::process::Command::new("bash");
            asked.args(["--norc", "-c", BASH_COMPLETES]);
            let ended = run(asked, script.as_bytes());
            assert_eq!(ended.success(), "status\n");
        }
    }
    let ended = run(bare(&["completions", "tcsh"]), b"");
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
