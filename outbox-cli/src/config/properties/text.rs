//! Any text in any place: an answer, never a panic. And durations, which are text for people.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};

use super::written::read;
use crate::{config::parse_duration, output};

/// Pieces of configurations, right and wrong, which together are seldom either.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "[store]\n",
        "[[routes.a.retry_for]]\n",
        "[routes.\"\"]\n",
        "[routes",
        ".a",
        "]\n",
        "kind",
        "url",
        " = ",
        "\"",
        "'",
        "\"\"\"",
        "{",
        "}",
        "[",
        ",",
        "\n",
        "#",
        "\\u0000",
        "\\",
        "1e400",
        "99999999999999999999",
        "1979-05-27T07:32:00Z",
        "true",
        "retry_for",
        "0x",
        "\u{feff}",
        "é",
        "\r",
        "unknown field `",
        "`, expected ",
        "\", expected",
    ];
    prop_oneof![
        8 => select(words.map(str::to_owned).to_vec()),
        1 => any::<String>(),
        1 => (select(vec!["[", "{", "a.", "{a="]), 1usize..3000).prop_map(|(text, times)| text.repeat(times)),
    ]
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![3 => vec(pieces(), 0..12).prop_map(|pieces| pieces.concat()), 1 => any::<String>()]
}

fn is_answer(found: Result<crate::config::Settings, String>) -> Result<(), TestCaseError> {
    if let Err(message) = found {
        prop_assert!(message.starts_with("error: configuration: "), "{message}");
        prop_assert!(!message.contains(char::is_control), "{message:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(text in texts()) {
        is_answer(read(&text, vec![]))?;
    }

    #[test]
    fn any_variable_is_read_or_refused(name in prop_oneof!["(ROUTES|STORE|LOG|[A-Z_]{1,3})(__[A-Z_]{0,9}){0,4}", texts()], text in texts()) {
        is_answer(read("", vec![(format!("OUTBOX__{name}").into(), text.into())]))?;
    }

    /// A variable is one setting: nothing that stands behind its value goes unseen.
    #[test]
    fn a_variable_holds_one_value(number in 0u16.., rest in "\n[a-z]{1,3} = [0-9]") {
        let text = format!("{number}{rest}");
        prop_assert!(read("", vec![("OUTBOX__STORE__WORKERS".into(), text.into())]).is_err());
    }

    #[test]
    fn a_duration_reads_back(seconds in prop_oneof![Just(0u64), 0u64..100_000_000, any::<u64>()], nanos in 0u32..1_000_000_000) {
        let duration = Duration::new(seconds, nanos);
        let written = humantime::format_duration(duration).to_string();
        prop_assert_eq!(parse_duration(&written).unwrap(), duration);
        // For people, the two largest units: less than is told, never more, and it reads back as well.
        let told = output::duration(duration);
        let read = parse_duration(&told).unwrap();
        prop_assert!(read <= duration && duration.saturating_sub(read) <= read / 10 + Duration::from_millis(1), "{told}");
        prop_assert_eq!(output::duration(read), told);
    }

    #[test]
    fn what_is_no_duration_is_refused_unseen(text in prop_oneof!["[0-9a-zµ. ]{0,12}", any::<String>()]) {
        match parse_duration(&text) {
            Ok(duration) => prop_assert_eq!(parse_duration(&humantime::format_duration(duration).to_string()).unwrap(), duration),
            Err(message) => prop_assert!(message.starts_with("no duration; write a number with its unit")),
        }
    }
}
