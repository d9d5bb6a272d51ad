//! Standard output of the commands that answer a question.

use std::io::{self, ErrorKind, Write};

use crate::exit::Failure;

/// Writes what a command has to say, in one go.
///
/// A reader that has read enough (`outbox dead list | head`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_more(text).map(|_| ())
}

/// Writes a part of what a command has to say; false when whoever read it has closed the pipe.
pub(crate) fn print_more(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    is_read(written)
}

/// Whether anybody still reads, by how writing to standard output ended.
pub(crate) fn is_read(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!(
            "write to standard output: {error}"
        ))),
    }
}

/// Any text, fit for a terminal: what a row may hold and nobody would see is shown as escapes.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escape = is_unseen(c).then(|| c.escape_default());
            let same = escape.is_none().then_some(c);
            escape.into_iter().flatten().chain(same)
        })
        .collect()
}

/// Controls, and marks of Unicode that end lines, turn the direction of text or have no width: with them
/// one topic can be made to look like another.
fn is_unseen(c: char) -> bool {
    let is_mark = matches!(
        c,
        '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    c.is_control() || is_mark
}

/// A duration for people: its two largest units.
pub(crate) fn duration(duration: std::time::Duration) -> String {
    let rounded = match duration.as_secs() {
        0 => std::time::Duration::from_millis(u64::from(duration.subsec_millis())),
        seconds => std::time::Duration::from_secs(seconds),
    };
    let text = humantime::format_duration(rounded).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Rows under a heading, in columns as wide as their widest cell.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or(0)
    });
    let mut text = String::new();
    let lines = std::iter::once(heading.map(str::to_owned)).chain(rows.iter().cloned());
    for cells in lines {
        let padded = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn durations_keep_two_units() {
        assert_eq!(duration(Duration::ZERO), "0s");
        assert_eq!(duration(Duration::from_micros(1_500)), "1ms");
        assert_eq!(duration(Duration::from_millis(61_500)), "1m 1s");
        assert_eq!(duration(Duration::from_secs(93_784)), "1day 2h");
    }

    #[test]
    fn no_text_looks_like_another_one() {
        assert_eq!(plain("a\u{202e}cba\u{200b}"), "a\\u{202e}cba\\u{200b}");
        assert_eq!(
            plain("a\u{2028}b\u{2066}\u{feff}"),
            "a\\u{2028}b\\u{2066}\\u{feff}"
        );
        let joined = "日本語 👩\u{200d}💻 می\u{200c}خواهم";
        assert_eq!(plain(joined), joined, "joiners belong to the writing");
    }

    #[test]
    fn columns_line_up_and_control_characters_do_nothing() {
        let rows =
            [["ä\u{1b}[31m".to_owned(), "1".to_owned()]].map(|row| row.map(|cell| plain(&cell)));
        assert_eq!(rows[0][0], "ä\\u{1b}[31m");
        assert_eq!(
            table(["a", "bb"], &rows),
            "a            bb\nä\\u{1b}[31m  1\n"
        );
    }
}
