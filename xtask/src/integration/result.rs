//! What a test program says of itself, by the lines that Rust's test harness prints.

use std::ops::AddAssign;

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Left out by a filter.
    pub(crate) filtered: usize,
}

impl Counts {
    /// Those that ran.
    pub(crate) fn ran(self) -> usize {
        self.passed + self.failed
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.filtered += other.filtered;
    }
}

/// The counts in a line as
/// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s`.
/// `None` for any other line.
pub(crate) fn parse(line: &str) -> Option<Counts> {
    let (_, list) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    let mut known = 0;
    for entry in list.split("; ") {
        let Some((number, what)) = entry.split_once(' ') else {
            continue;
        };
        let field = match what {
            "passed" => &mut counts.passed,
            "failed" => &mut counts.failed,
            "ignored" => &mut counts.ignored,
            "filtered out" => &mut counts.filtered,
            _ => continue,
        };
        *field = number.parse().ok()?;
        known += 1;
    }
    (known == 4).then_some(counts)
}

/// The library that the lines after this one are about, in a run of documentation's tests.
pub(crate) fn doc_heading(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("Doc-tests ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_result_line() {
        let line = "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s";
        let expected = Counts {
            passed: 5,
            failed: 2,
            ignored: 1,
            filtered: 3,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(expected.ran(), 7);
    }

    #[test]
    fn other_lines_are_not_results() {
        for line in [
            "test a::b ... ok",
            "  test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 5 passed; x failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 5 passed",
            "",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn heading_names_the_library() {
        assert_eq!(doc_heading("   Doc-tests outbox_core"), Some("outbox_core"));
        assert_eq!(doc_heading("running 3 tests"), None);
    }
}
