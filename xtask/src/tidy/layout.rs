//! Rules about which files there are and how large.

use syn::Item;

use crate::tidy::tree::Tree;

/// A file with more lines has more than one job.
const LINES_MAX: usize = 500;

/// Files that may be longer, each with the reason beside it. Empty is how it should stay.
const LONG_FILES: &[&str] = &[];

/// The crates that connect to a database or a broker, each with the same skeleton: who knows one
/// knows all.
const BACKENDS: &[&str] = &[
    "outbox-amqp",
    "outbox-kafka",
    "outbox-nats",
    "outbox-postgres",
    "outbox-redis",
    "outbox-sqlite",
];

/// Files of at most [`LINES_MAX`] lines.
pub(crate) fn file_sizes(tree: &Tree) -> Vec<String> {
    let rust = tree
        .texts()
        .filter(|(path, _)| is_rust(path) && !LONG_FILES.contains(path));
    rust.filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{path}: {lines} lines, at most {LINES_MAX}: split it"))
    })
    .collect()
}

/// Each backend has its configuration, its error table, its implementation, its guide in the
/// crate's documentation, and runs a suite of the testkit.
pub(crate) fn backend_skeletons(tree: &Tree) -> Vec<String> {
    BACKENDS
        .iter()
        .flat_map(|backend| skeleton(tree, backend))
        .collect()
}

fn skeleton(tree: &Tree, backend: &str) -> Vec<String> {
    let mut problems = vec![];
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            problems.push(format!("{backend}: {what}"));
        }
    };
    let has = |path: &str| tree.has(&format!("{backend}/{path}"));
    for file in ["src/lib.rs", "src/config.rs", "src/error.rs", "docs.md"] {
        expect(has(file), &format!("no {file}"));
    }
    let implementations = ["publisher", "store"];
    let is_there = |name: &&str| has(&format!("src/{name}.rs")) || has(&format!("src/{name}"));
    expect(
        implementations.iter().any(is_there),
        "neither src/publisher.rs nor src/store.rs nor a folder of that name",
    );
    let library = tree
        .text(&format!("{backend}/src/lib.rs"))
        .unwrap_or_default();
    expect(
        library.contains(r#"include_str!("../docs.md")"#),
        "src/lib.rs does not include docs.md in its documentation",
    );
    let folder = format!("{backend}/tests");
    let mut tests = tree.files_below(&folder).filter(|path| is_rust(path));
    let runs_suite = |path: &str| {
        tree.text(path)
            .is_some_and(|text| text.contains("outbox_testkit"))
    };
    expect(
        tests.any(runs_suite),
        "no file in tests/ runs a suite of outbox_testkit",
    );
    problems
}

/// A `src/lib.rs` lists modules and re-exports; it never implements.
pub(crate) fn libraries_only_list(tree: &Tree) -> Vec<String> {
    let libraries = tree
        .texts()
        .filter(|(path, _)| path.ends_with("src/lib.rs"));
    libraries
        .flat_map(|(path, text)| listing_only(path, text))
        .collect()
}

fn listing_only(path: &str, text: &str) -> Vec<String> {
    let file = match syn::parse_file(text) {
        Ok(file) => file,
        Err(error) => return vec![format!("{path}: does not parse: {error}")],
    };
    let others = file.items.iter().filter(|item| !is_listing(item));
    others
        .map(|item| format!("{path}: {} belongs into a module", kind(item)))
        .collect()
}

/// `mod x;`, `use`, and modules in place of the same.
fn is_listing(item: &Item) -> bool {
    match item {
        Item::Mod(module) => module
            .content
            .iter()
            .all(|(_, items)| items.iter().all(is_listing)),
        Item::Use(_) | Item::ExternCrate(_) => true,
        _ => false,
    }
}

fn kind(item: &Item) -> String {
    match item {
        Item::Fn(item) => format!("fn {}", item.sig.ident),
        Item::Impl(_) => "an impl".to_owned(),
        Item::Struct(item) => format!("struct {}", item.ident),
        Item::Enum(item) => format!("enum {}", item.ident),
        Item::Trait(item) => format!("trait {}", item.ident),
        Item::Const(item) => format!("const {}", item.ident),
        Item::Static(item) => format!("static {}", item.ident),
        Item::Type(item) => format!("type {}", item.ident),
        Item::Mod(item) => format!("what is in mod {}", item.ident),
        Item::Macro(_) => "a macro".to_owned(),
        _ => "an item".to_owned(),
    }
}

/// Every crate takes the lints of the workspace; without the entry it has none.
pub(crate) fn lints_inherited(tree: &Tree) -> Vec<String> {
    let manifests = tree
        .texts()
        .filter(|(path, _)| path.ends_with("/Cargo.toml"));
    manifests
        .filter_map(|(path, text)| lints_problem(path, text))
        .collect()
}

fn lints_problem(path: &str, text: &str) -> Option<String> {
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return Some(format!("{path}: does not parse: {}", error.message())),
    };
    let inherits = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        .and_then(toml::Value::as_bool);
    (manifest.contains_key("package") && inherits != Some(true))
        .then(|| format!("{path}: no `[lints] workspace = true`"))
}

fn is_rust(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, end)| end == "rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_file_is_found() {
        let tree = Tree::of(&[
            ("a/src/x.rs", &"x\n".repeat(LINES_MAX)),
            ("a/src/y.rs", &"x\n".repeat(LINES_MAX + 1)),
            ("a/data.json", &"x\n".repeat(LINES_MAX + 1)),
        ]);
        assert_eq!(
            file_sizes(&tree),
            ["a/src/y.rs: 501 lines, at most 500: split it"]
        );
    }

    const LIBRARY: &str =
        "#![doc = include_str!(\"../docs.md\")]\nmod config;\npub use config::C;\n";

    #[test]
    fn complete_backend_passes_and_each_missing_part_is_found() {
        let files = [
            ("b/src/lib.rs", LIBRARY),
            ("b/src/config.rs", ""),
            ("b/src/error.rs", ""),
            ("b/src/store/mod.rs", ""),
            ("b/docs.md", ""),
            ("b/tests/suite.rs", "outbox_testkit::store_suite!(x);"),
        ];
        assert_eq!(skeleton(&Tree::of(&files), "b"), [""; 0]);
        for missing in 0..files.len() {
            let mut rest = files.to_vec();
            rest.remove(missing);
            assert!(
                !skeleton(&Tree::of(&rest), "b").is_empty(),
                "{:?}",
                files[missing]
            );
        }
        let mut no_suite = files;
        no_suite[5].1 = "fn main() {}";
        assert_eq!(skeleton(&Tree::of(&no_suite), "b").len(), 1);
        let mut no_guide = files;
        no_guide[0].1 = "mod config;";
        assert_eq!(skeleton(&Tree::of(&no_guide), "b").len(), 1);
    }

    #[test]
    fn library_that_implements_is_found() {
        let listing = "//! Docs.\nmod a;\npub mod b { pub use crate::a::B; }\npub use a::A;\n#[cfg(test)]\nmod tests;";
        assert_eq!(listing_only("a/src/lib.rs", listing), [""; 0]);
        for (text, found) in [
            ("pub fn f() {}", "fn f"),
            ("struct S;\nimpl S {}", "struct S"),
            ("mod a { fn f() {} }", "what is in mod a"),
            ("macro_rules! m { () => {} }", "a macro"),
        ] {
            let problems = listing_only("a/src/lib.rs", text);
            assert!(problems[0].contains(found), "{problems:?}");
        }
        assert_eq!(listing_only("a/src/lib.rs", "mod {").len(), 1);
    }

    #[test]
    fn crate_without_the_lints_is_found() {
        let package = "[package]\nname = \"a\"\n";
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\n"),
            ("a/Cargo.toml", package),
            (
                "b/Cargo.toml",
                &format!("{package}[lints]\nworkspace = true\n"),
            ),
            (
                "c/Cargo.toml",
                &format!("{package}[lints.rust]\nunused = \"allow\"\n"),
            ),
        ]);
        let problems = lints_inherited(&tree);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].starts_with("a/") && problems[1].starts_with("c/"),
            "{problems:?}"
        );
    }
}
