//! Rules about what stands in the files.

use crate::tidy::tree::Tree;

/// The guides whose paths a reader follows.
const GUIDES: &[&str] = &["ARCHITECTURE.md", "README.md"];

/// Names with these endings are files of this repository wherever a guide has them in backticks.
/// A `.toml` or `.json` alone may as well be the reader's own.
const ALWAYS_FILES: &[&str] = &[".rs", ".sql", ".md"];

/// Files that are built, so they are not there before.
const GENERATED: &str = "target/";

/// Paths in backticks in the guides exist.
pub(crate) fn named_paths_exist(tree: &Tree) -> Vec<String> {
    let mut problems = vec![];
    for guide in GUIDES {
        let Some(text) = tree.text(guide) else {
            problems.push(format!("{guide}: is missing"));
            continue;
        };
        for (number, line) in prose(text) {
            let quoted = line.split('`').skip(1).step_by(2);
            for path in quoted.filter(|quoted| is_path(tree, quoted)) {
                if !tree.has(path.trim_end_matches('/')) && !tree.has_ending(path) {
                    problems.push(format!("{guide}:{number}: there is no `{path}`"));
                }
            }
        }
    }
    problems
}

/// The lines outside fenced blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line))
    })
}

/// Whether a quoted word means a file or folder here, not a command, a route or a type.
fn is_path(tree: &Tree, quoted: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if !quoted.chars().all(is_plain) || quoted.starts_with('/') || quoted.starts_with(GENERATED) {
        return false;
    }
    let first = quoted.split('/').next().unwrap_or_default();
    ALWAYS_FILES.iter().any(|end| quoted.ends_with(end))
        || quoted.contains('/') && (quoted.ends_with('/') || tree.has(first))
}

/// The files that the words are looked for in, by their endings.
const SEARCHED: &[&str] = &[
    ".rs", ".md", ".toml", ".sql", ".yaml", ".yml", ".json", ".sh", ".ci/run",
];

/// Unfinished work and tests that do not run. Put together so that this file has none of them.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("todo", "!("), "unfinished"),
    (concat!("unimplemented", "!("), "unfinished"),
    (concat!("#[", "ignore"), "a test that does not run"),
];

/// Folders that are on one machine only.
const MACHINE_FOLDERS: &[&str] = &["work", "root", "home", "tmp"];

/// No unfinished work, no test that does not run, no path of the machine it was written on.
pub(crate) fn forbidden_words(tree: &Tree) -> Vec<String> {
    let searched = tree
        .texts()
        .filter(|(path, _)| SEARCHED.iter().any(|end| path.ends_with(end)));
    searched
        .flat_map(|(path, text)| {
            let numbered = text.lines().enumerate();
            numbered.flat_map(move |(index, line)| {
                let problems = line_problems(line).into_iter();
                problems.map(move |problem| format!("{path}:{}: {problem}", index + 1))
            })
        })
        .collect()
}

fn line_problems(line: &str) -> Vec<String> {
    let mut problems: Vec<String> = FORBIDDEN
        .iter()
        .filter(|(word, _)| line.contains(word))
        .map(|(word, why)| format!("`{word}`: {why}"))
        .collect();
    let fence = line.trim_start_matches([' ', '/', '!']).strip_prefix("```");
    if fence.is_some_and(|language| language.split(',').any(|word| word.trim() == "ignore")) {
        problems.push("an example that is not compiled".to_owned());
    }
    problems.extend(
        MACHINE_FOLDERS
            .iter()
            .filter(|folder| names_folder(line, folder))
            .map(|folder| format!("a path of one machine (/{folder})")),
    );
    problems
}

/// Whether the line has an absolute path into this top folder, and not a longer path or a URL
/// that only contains its name.
fn names_folder(line: &str, folder: &str) -> bool {
    let path = format!("/{folder}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.}~*$)".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        named_paths_exist(&Tree::of(&[
            ("README.md", text),
            ("ARCHITECTURE.md", ""),
            ("outbox-core/src/lib.rs", ""),
        ]))
    }

    #[test]
    fn path_that_does_not_exist_is_found() {
        for gone in [
            "outbox-core/src/engine.rs",
            "engine.rs",
            "outbox-core/x",
            "old-crate/",
        ] {
            let problems = paths(&format!("first\nsee `{gone}` there"));
            assert_eq!(problems, [format!("README.md:2: there is no `{gone}`")]);
        }
    }

    #[test]
    fn existing_paths_and_other_words_pass() {
        let text = "`outbox-core/src/lib.rs` `src/lib.rs` `lib.rs` `outbox-core/` `/metrics` \
            `outbox.toml` `text/plain` `target/x.md` `cargo run -p a/b` `Lane`\n\
            ```\n`gone.rs`\n```\n";
        assert_eq!(paths(text), [""; 0]);
    }

    #[test]
    fn missing_guide_is_found() {
        let problems = named_paths_exist(&Tree::of(&[("README.md", "")]));
        assert_eq!(problems, ["ARCHITECTURE.md: is missing"]);
    }

    #[test]
    fn unfinished_work_and_unrun_tests_are_found() {
        for (word, _) in FORBIDDEN {
            assert_eq!(line_problems(&format!("    {word}")).len(), 1, "{word}");
        }
        assert_eq!(line_problems("/// ```rust,ignore").len(), 1);
        assert_eq!(line_problems("/// ```no_run").len(), 0);
        assert_eq!(
            line_problems("// requests to ignore, and what is to do").len(),
            0
        );
    }

    #[test]
    fn machine_paths_are_found() {
        for folder in MACHINE_FOLDERS {
            for line in [
                format!("x = \"/{folder}/x\""),
                format!("/{folder}/y"),
                format!("file:///{folder}/z"),
            ] {
                assert_eq!(line_problems(&line).len(), 1, "{line}");
            }
            let inner =
                format!("a/{folder}/b and $DIR/{folder}/c and https://h.example/{folder}/d");
            assert_eq!(line_problems(&inner).len(), 0, "{inner}");
        }
    }

    #[test]
    fn only_written_files_are_searched() {
        let word = FORBIDDEN[0].0;
        let tree = Tree::of(&[
            ("a/src/x.rs", word),
            (".ci/run", word),
            ("Cargo.lock", word),
        ]);
        let problems = forbidden_words(&tree);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[1].starts_with("a/src/x.rs:1: "), "{problems:?}");
    }
}
