//! Runs seeds of the simulation: `cargo xtask sim` starts it.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Write as _},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use clap::Parser;
use outbox_testkit::sim::{Coverage, Mutation, Run, run};

/// Failed seeds that are told in full.
const FAILED_SHOWN: usize = 10;

/// Runs the relay engine through seeded histories of faults and judges them by the invariants.
#[derive(Parser)]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000_000_000))]
    first: u64,
    /// Only this one, step by step.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Break the engine or the store in this way first.
    #[arg(long, value_parser = mutation)]
    mutation: Option<Mutation>,
}

fn mutation(name: &str) -> Result<Mutation, String> {
    let known = || Mutation::all().map(|of| of.to_string()).collect::<Vec<_>>();
    Mutation::parse(name).ok_or_else(|| format!("not one of {}", known().join(", ")))
}

/// What all seeds together came to.
#[derive(Default)]
struct Total {
    seeds: u64,
    events: usize,
    faults: u64,
    facts: usize,
    coverage: Coverage,
    failed: Vec<Run>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.seed {
        Some(seed) => replay(seed, options.mutation),
        None => all(&options),
    }
}

/// Prints it. Whoever closed our output has read enough: what was found is in the exit code still.
fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("can't print the result: {error}");
        }
        _ => {}
    }
}

fn replay(seed: u64, mutation: Option<Mutation>) -> ExitCode {
    let run = run(seed, mutation);
    tell(&run.trace());
    tell(&format!(
        "seed {seed}: {} events, {} faults\n",
        run.events, run.faults
    ));
    match run.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            tell(&format!("{failure}\n"));
            ExitCode::FAILURE
        }
    }
}

fn all(options: &Options) -> ExitCode {
    let began = Instant::now();
    let end = options.first + options.seeds;
    let next = AtomicU64::new(options.first);
    let total = Mutex::new(Total::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let run = run(seed, options.mutation);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.seeds += 1;
                    total.events += run.events;
                    total.faults += run.faults;
                    total.facts += run.facts;
                    total.coverage.add(&run.coverage);
                    if run.failure.is_some() {
                        total.failed.push(run);
                    }
                }
            });
        }
    });
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    report(&total, options, began)
}

fn report(total: &Total, options: &Options, began: Instant) -> ExitCode {
    let seconds = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 seeds")]
    let rate = total.seeds as f64 / seconds;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "events in flight at deaths of their process:\n{}",
        total.coverage
    );
    let _ = writeln!(
        text,
        "{} seeds in {seconds:.1} s ({rate:.0} a second): {} events, {} faults, {} facts judged",
        total.seeds, total.events, total.faults, total.facts
    );
    let mut failed: Vec<_> = total.failed.iter().collect();
    failed.sort_by_key(|run| run.seed);
    for run in failed.iter().take(FAILED_SHOWN) {
        let mutation = options
            .mutation
            .map_or_else(String::new, |of| format!(" --mutation {of}"));
        let _ = writeln!(
            text,
            "seed {} failed; replay: cargo xtask sim --seed {}{mutation}",
            run.seed, run.seed
        );
        if let Some(failure) = &run.failure {
            let _ = writeln!(text, "{failure}");
        }
    }
    let _ = writeln!(text, "{} of {} seeds failed", failed.len(), total.seeds);
    tell(&text);
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
