//! Links of the guides. A `docs.md` is read twice: by rustdoc as the page of its crate, and in the
//! repository as Markdown. What only one of the two understands is noise in the other.

use crate::tidy::tree::Tree;

/// How the names of pages end.
const PAGE: &str = ".md";

/// The pages that rustdoc includes.
const CRATE_PAGE: &str = "docs.md";

/// Links lead somewhere, and crate pages have nothing that only rustdoc or only the repository shows.
pub(crate) fn links_lead_somewhere(tree: &Tree) -> Vec<String> {
    let pages = tree.texts().filter(|(path, _)| path.ends_with(PAGE));
    pages
        .flat_map(|(path, text)| {
            let problems = Page::read(text).problems(tree, path).into_iter();
            problems.map(move |(line, problem)| format!("{path}:{line}: {problem}"))
        })
        .collect()
}

/// A page taken apart, each piece with the number of its line.
#[derive(Default)]
struct Page {
    /// Without what stands in backticks.
    prose: Vec<(usize, String)>,
    /// Lines of Rust examples that rustdoc leaves out.
    hidden: Vec<usize>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut fence: Option<&str> = None;
        let mut is_code = false;
        for (index, line) in text.lines().enumerate() {
            let marker = line.trim_start().strip_prefix("```");
            match (fence, marker) {
                (Some(_), Some(_)) => fence = None,
                (None, Some(language)) => fence = Some(language),
                (Some(language), None) => {
                    if is_rust(language) && (line == "#" || line.starts_with("# ")) {
                        page.hidden.push(index + 1);
                    }
                }
                (None, None) => {
                    // A code span may go on in the next line, but not past a blank one.
                    is_code &= !line.trim().is_empty();
                    let masked = without_code(line, &mut is_code);
                    page.prose.push((index + 1, masked));
                }
            }
        }
        page
    }

    fn problems(&self, tree: &Tree, path: &str) -> Vec<(usize, String)> {
        let is_crate_page = path.rsplit('/').next() == Some(CRATE_PAGE);
        let mut problems = vec![];
        for (number, line) in &self.prose {
            let mut tell = |problem: String| problems.push((*number, problem));
            // What a code span leaves behind is its two backticks.
            if line.replace("[``](", "").contains("[``]") {
                tell("a link without a target, which only rustdoc can follow".to_owned());
            }
            for target in targets(line) {
                if target.contains("://") {
                    // Nobody is asked here whether it answers.
                } else if target.contains("::") {
                    tell(format!("a link that only rustdoc can follow: {target}"));
                } else if is_crate_page && !target.starts_with('#') {
                    tell(format!("a link that rustdoc can't follow: {target}"));
                } else if !is_there(tree, path, target) {
                    tell(format!("a link to what is not there: {target}"));
                }
            }
        }
        let hidden = self.hidden.iter().filter(|_| is_crate_page);
        problems.extend(hidden.map(|line| {
            let problem = "a hidden line of an example, which the repository shows: write it whole";
            (*line, problem.to_owned())
        }));
        problems
    }
}

/// Whether rustdoc takes a block of this language for Rust, which is also what it does without one.
fn is_rust(language: &str) -> bool {
    matches!(
        language.split(',').next(),
        Some("" | "rust" | "no_run" | "should_panic" | "compile_fail")
    )
}

fn without_code(line: &str, is_code: &mut bool) -> String {
    line.chars()
        .filter(|c| {
            if *c == '`' {
                *is_code = !*is_code;
                return true;
            }
            !*is_code
        })
        .collect()
}

fn targets(line: &str) -> impl Iterator<Item = &str> {
    let behind = line.split("](").skip(1);
    behind.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Whether a page, seen from another, has this file and heading.
fn is_there(tree: &Tree, page: &str, target: &str) -> bool {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let file = match file {
        "" => page.to_owned(),
        file if folder.is_empty() => file.to_owned(),
        file => format!("{folder}/{file}"),
    };
    if heading.is_empty() {
        return tree.has(&file);
    }
    let headings = tree.text(&file).into_iter().flat_map(str::lines);
    headings
        .filter_map(|line| line.strip_prefix('#'))
        .any(|line| anchor(line.trim_start_matches('#')) == heading)
}

/// What a heading is called in an address, by rustdoc and by repositories alike.
fn anchor(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    lower
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(page: &str, text: &str) -> Vec<String> {
        links_lead_somewhere(&Tree::of(&[
            (page, text),
            ("a/other.md", "# The `one` way\n"),
            ("a/src/lib.rs", ""),
        ]))
    }

    #[test]
    fn what_only_one_reader_understands_is_found() {
        for (text, said) in [
            ("see [`Event`] there", "without a target"),
            ("see [`Event`](core::Event)", "only rustdoc"),
            ("see [it](src/lib.rs)", "rustdoc can't"),
            ("```rust,no_run\n# fn main() {\n```", "hidden line"),
        ] {
            let problems = problems("a/docs.md", &format!("first\n{text}\n"));
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert!(problems[0].starts_with("a/docs.md:"), "{problems:?}");
            assert!(problems[0].contains(said), "{problems:?}");
        }
    }

    #[test]
    fn link_to_what_is_not_there_is_found() {
        for target in ["gone.md", "other.md#another-way", "#nowhere"] {
            let problems = problems("a/guide.md", &format!("a\nb [it]({target})\n"));
            let told = format!("a/guide.md:2: a link to what is not there: {target}");
            assert_eq!(problems, [told]);
        }
    }

    #[test]
    fn good_links_and_code_pass() {
        let text = "# Here it is\n[x](src/lib.rs) [`y`](other.md#the-one-way) [z](#here-it-is) \
            [w](https://h.example/a::b) `[[\"a\"]](b)` `two\nlines [`\n```toml\n# a comment\n```\n";
        assert_eq!(problems("a/guide.md", text), [""; 0]);
        let text = "# A\n`Event` [here](#a)\n```sh\n# a comment\n```\n";
        assert_eq!(problems("a/docs.md", text), [""; 0]);
    }
}
