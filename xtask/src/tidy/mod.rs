//! `cargo xtask tidy`: rules of the source tree that a compiler does not check.

mod dependencies;
mod layout;
mod links;
mod text;
mod tree;

use anyhow::{Result, bail};

use crate::command::say;
use crate::tidy::tree::Tree;
use crate::workspace::Workspace;

/// Prints what breaks a rule. Whether nothing does.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let problems = problems(workspace)?;
    for problem in &problems {
        say(problem);
    }
    if problems.is_empty() {
        say("tidy");
    }
    Ok(problems.is_empty())
}

/// [`run`] as one step of a check.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    if !run(workspace)? {
        bail!("the tree is not tidy");
    }
    Ok(())
}

/// One line for each breach, with the file first.
fn problems(workspace: &Workspace) -> Result<Vec<String>> {
    let tree = Tree::read(&workspace.root)?;
    let mut problems = vec![];
    problems.extend(layout::file_sizes(&tree));
    problems.extend(layout::backend_skeletons(&tree));
    problems.extend(layout::libraries_only_list(&tree));
    problems.extend(layout::lints_inherited(&tree));
    problems.extend(text::named_paths_exist(&tree));
    problems.extend(text::forbidden_words(&tree));
    problems.extend(links::links_lead_somewhere(&tree));
    problems.extend(dependencies::testkit_only_for_tests(&workspace.packages));
    let graph = dependencies::Graph::read(workspace)?;
    problems.extend(dependencies::no_second_tls(&graph));
    Ok(problems)
}
