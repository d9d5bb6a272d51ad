//! One file a command.

mod bench;
mod check;
mod completions;
mod dead;
mod dead_bulk;
#[cfg(feature = "sqlite")]
mod demo;
mod enqueue;
mod migrate;
mod purge;
mod relay;
mod status;
mod steps;
mod watch;

pub(crate) use self::bench::BenchArgs;
#[cfg(feature = "otlp")]
use crate::spans::Spans;
use crate::{
    args::{Cli, Command, DeadCommand, GlobalArgs},
    config::{self, LogConfig, Settings, StoreConfig},
    exit::Failure,
    logging,
};

/// What is logged when nothing is said: a relay tells what it does, the others only warn.
const RELAY_LEVEL: &str = "info";
const COMMAND_LEVEL: &str = "warn";
/// What fails is in the picture, and a driver's warning would be written across it.
const WATCH_LEVEL: &str = "off";
/// What fails is in the report; the command itself may tell something.
const BENCH_LEVEL: &str = "off,outbox::commands=warn";

/// Runs the command that was asked for.
pub(crate) fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    if let Command::Completions(args) = command {
        return completions::run(&args);
    }
    if let Command::Demo(args) = &command {
        return demo::run(args, &global);
    }
    let settings = config::load(global.config.as_deref(), std::env::vars_os())?;
    let level = match &command {
        Command::Relay(args) if !args.check => RELAY_LEVEL,
        Command::Status(args) if args.watch.is_some() => WATCH_LEVEL,
        Command::Bench(_) => BENCH_LEVEL,
        _ => COMMAND_LEVEL,
    };
    #[cfg(feature = "otlp")]
    let spans = match &command {
        Command::Relay(args) if !args.check => Spans::start()?,
        _ => None,
    };
    #[cfg(feature = "otlp")]
    let tap = spans.as_ref().map(Spans::tap);
    #[cfg(not(feature = "otlp"))]
    let tap = None;
    logging::init(&LogConfig::new(&settings.log, &global, level), tap)?;
    match command {
        Command::Migrate(args) if args.print => migrate::print_sql(&settings, &global),
        Command::Migrate(args) => simple(migrate::run(&args, store(settings, &global)?)),
        Command::Relay(args) => relay::run(&args, settings, &global),
        Command::Status(args) => simple(status::run(&args, store(settings, &global)?)),
        Command::Dead(command) => {
            let store = store(settings, &global)?;
            match command {
                DeadCommand::List(args) => simple(dead::list(&args, store)),
                DeadCommand::Show(args) => simple(dead::show(&args, store)),
                DeadCommand::Requeue(args) => simple(dead_bulk::requeue(&args, store)),
                DeadCommand::Discard(args) => simple(dead_bulk::discard(&args, store)),
            }
        }
        Command::Purge(args) => simple(purge::run(&args, store(settings, &global)?)),
        Command::Enqueue(args) => {
            let events = enqueue::read(args)?;
            simple(enqueue::write(events, store(settings, &global)?))
        }
        Command::Bench(args) => relay::on_threads(bench::run(&args, settings, &global)),
        // Answered above: a wrong configuration must not hinder them.
        Command::Completions(args) => completions::run(&args),
        Command::Demo(args) => demo::run(&args, &global),
    }
}

fn store(settings: Settings, global: &GlobalArgs) -> Result<StoreConfig, Failure> {
    StoreConfig::new(settings.store, global)
}

/// One question, one thread.
fn simple(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| Failure::failed(format!("start: {error}")))?
        .block_on(command)
}

#[cfg(not(feature = "sqlite"))]
mod demo {
    use crate::{
        args::{DemoArgs, GlobalArgs},
        exit::Failure,
    };

    pub(super) fn run(_: &DemoArgs, _: &GlobalArgs) -> Result<(), Failure> {
        Err(Failure::usage(
            "demo: this program was built without SQLite — build it with the feature sqlite",
        ))
    }
}
