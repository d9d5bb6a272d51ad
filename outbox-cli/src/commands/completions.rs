//! `outbox completions`

use clap::CommandFactory as _;

use crate::{
    args::{Cli, CompletionsArgs},
    exit::Failure,
    output::print,
};

/// Prints the script. It needs neither configuration nor servers.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "outbox", &mut script);
    print(&String::from_utf8_lossy(&script))
}
