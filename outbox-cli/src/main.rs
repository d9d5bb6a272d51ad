#![doc = include_str!("../docs.md")]

mod args;
mod commands;
mod config;
mod event_json;
mod exit;
mod http;
mod logging;
mod output;
mod publishers;
mod redact;
mod signals;
#[cfg(feature = "otlp")]
mod spans;
mod store;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return args::explain(&error),
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.end(),
    }
}
