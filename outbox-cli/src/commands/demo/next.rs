//! What to try after the demo.

use std::fmt::Write as _;

/// The next commands, as they can be typed: on this database, or how to get one.
pub(super) fn commands(url: Option<&str>) -> String {
    let program = std::env::args().next();
    commands_of(program.as_deref().unwrap_or("outbox"), url)
}

fn commands_of(program: &str, url: Option<&str>) -> String {
    let program = word(program);
    let Some(url) = url else {
        return format!(
            "\nThe file is removed. To keep one, with a dead letter to look at and to put back:\n  \
             {program} demo --keep\n"
        );
    };
    let url = word(url);
    let mut text = "\nThe file is kept. Next:\n".to_owned();
    for command in [
        "status",
        "dead list",
        "dead requeue --all",
        "relay --publisher stdout",
    ] {
        let _ = writeln!(text, "  {program} --store-url {url} {command}");
    }
    text.push_str("The relay prints the event and the one that waits behind it; Ctrl-C ends it.\n");
    text
}

/// A word for a shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:+,@%=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_read_more_into_them() {
        assert_eq!(word("/srv/a-b_1.db"), "/srv/a-b_1.db");
        assert_eq!(word("/srv/it's $1"), r"'/srv/it'\''s $1'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn the_commands_name_the_program_as_it_was_called() {
        let text = commands_of("target/release/outbox", Some("sqlite:/srv/a b.db"));
        let line = "\n  target/release/outbox --store-url 'sqlite:/srv/a b.db' dead list\n";
        assert!(text.contains(line), "{text}");
        assert!(commands_of("outbox", None).contains("\n  outbox demo --keep\n"));
    }
}
