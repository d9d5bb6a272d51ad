//! The table at the end of a run, and what counts as a failure.

use std::time::Duration;

use crate::integration::result::Counts;

/// What became of the suites.
pub(crate) struct Report {
    versions: Vec<(&'static str, String)>,
    /// With a filter, a suite without a test of that name is no failure.
    is_filtered: bool,
    rows: Vec<Row>,
    problems: Vec<String>,
}

/// What became of one suite.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) suite: String,
    pub(crate) needs: Vec<&'static str>,
    pub(crate) counts: Counts,
    pub(crate) took: Duration,
    /// What went wrong beside the failed tests: a crash, a hang, processes left behind.
    pub(crate) problems: Vec<String>,
}

impl Report {
    /// `versions` are those of the servers that the run uses.
    pub(crate) fn new(versions: Vec<(&'static str, String)>, is_filtered: bool) -> Self {
        Self {
            versions,
            is_filtered,
            rows: vec![],
            problems: vec![],
        }
    }

    /// Takes the result of a suite. One that ran no test gets a problem.
    pub(crate) fn add(&mut self, mut row: Row) {
        if row.counts.ran() == 0 && row.problems.is_empty() && !self.is_filtered {
            row.problems.push("it ran no test".to_owned());
        }
        if row.counts.ignored > 0 {
            row.problems.push(format!(
                "{} ignored: an ignored test proves nothing",
                row.counts.ignored
            ));
        }
        self.rows.push(row);
    }

    /// Takes what went wrong with the run as a whole.
    pub(crate) fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    pub(crate) fn passed(&self) -> usize {
        self.rows.iter().map(|row| row.counts.passed).sum()
    }

    /// Failed tests, and every problem as one more.
    pub(crate) fn failed(&self) -> usize {
        let of_row = |row: &Row| row.counts.failed + row.problems.len();
        let rows: usize = self.rows.iter().map(of_row).sum();
        rows + self.problems.len() + usize::from(self.matched_nothing())
    }

    fn matched_nothing(&self) -> bool {
        self.is_filtered
            && self.problems.is_empty()
            && self.rows.iter().all(|row| row.counts.ran() == 0)
    }

    /// The table, the problems, and the closing line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let width = self
            .rows
            .iter()
            .map(|row| row.suite.len())
            .max()
            .unwrap_or(0)
            .max(5);
        let mut lines = vec![format!(
            "{:width$}  {:>6}  {:>6}  {:>6}  {:>8}  ran on",
            "suite", "tests", "passed", "failed", "time"
        )];
        for row in &self.rows {
            lines.push(format!(
                "{:width$}  {:>6}  {:>6}  {:>6}  {:>6.1} s  {}",
                row.suite,
                row.counts.ran(),
                row.counts.passed,
                row.counts.failed,
                row.took.as_secs_f64(),
                self.servers(&row.needs),
            ));
        }
        lines.push(String::new());
        for row in &self.rows {
            let problems = row.problems.iter();
            lines.extend(problems.map(|problem| format!("{}: {problem}", row.suite)));
        }
        lines.extend(self.problems.iter().cloned());
        if self.matched_nothing() {
            lines.push("no test has a name like that".to_owned());
        }
        lines.push(format!(
            "{} passed, {} failed",
            self.passed(),
            self.failed()
        ));
        lines
    }

    fn servers(&self, needs: &[&str]) -> String {
        let used = self
            .versions
            .iter()
            .filter(|(name, _)| needs.contains(name));
        let used: Vec<_> = used
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        if used.is_empty() {
            "no server".to_owned()
        } else {
            used.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &str, passed: usize, failed: usize) -> Row {
        let counts = Counts {
            passed,
            failed,
            ..Counts::default()
        };
        Row {
            suite: suite.into(),
            needs: vec!["redis"],
            counts,
            ..Row::default()
        }
    }

    fn report(is_filtered: bool, rows: Vec<Row>) -> Report {
        let versions = vec![
            ("postgres", "15.18".to_owned()),
            ("redis", "7.0.15".to_owned()),
        ];
        let mut report = Report::new(versions, is_filtered);
        for row in rows {
            report.add(row);
        }
        report
    }

    #[test]
    fn table_names_counts_and_versions_and_closes_plainly() {
        let lines = report(false, vec![row("a", 3, 0), row("b", 2, 1)]).lines();
        assert!(
            lines[1].contains('3') && lines[1].ends_with("redis 7.0.15"),
            "{lines:?}"
        );
        assert_eq!(lines.last().unwrap(), "5 passed, 1 failed");
    }

    #[test]
    fn suite_that_ran_no_test_fails_the_run() {
        let report = report(false, vec![row("a", 3, 0), row("b", 0, 0)]);
        assert_eq!(report.failed(), 1);
        assert!(report.lines().contains(&"b: it ran no test".to_owned()));
    }

    #[test]
    fn filter_may_leave_suites_empty_but_not_all() {
        assert_eq!(
            report(true, vec![row("a", 1, 0), row("b", 0, 0)]).failed(),
            0
        );
        assert_eq!(
            report(true, vec![row("a", 0, 0), row("b", 0, 0)]).failed(),
            1
        );
    }

    #[test]
    fn ignored_tests_and_problems_fail_the_run() {
        let mut ignoring = row("a", 3, 0);
        ignoring.counts.ignored = 1;
        assert_eq!(report(false, vec![ignoring]).failed(), 1);
        let mut whole = report(false, vec![row("a", 3, 0)]);
        whole.problem("the tests do not build".to_owned());
        assert_eq!(whole.failed(), 1);
        assert_eq!(whole.lines().last().unwrap(), "3 passed, 1 failed");
    }
}
