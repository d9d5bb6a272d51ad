//! `outbox purge`

use std::time::Duration;

use outbox_core::{CleanRequest, Cleaned};

use super::steps::Steps;
use crate::{
    args::PurgeArgs,
    config::{StoreConfig, set},
    exit::Failure,
    output::print,
    signals::Signals,
    store,
};

/// Rows of a step: larger than a relay's, for somebody waits.
const STEP: u32 = 2_000;

/// How soon to ask again while another cleaner is at work: it holds the lock for a step of a few
/// milliseconds, and rests between.
const TURN: Duration = Duration::from_millis(20);

/// Removes what is delivered and old, until nothing is left.
pub(crate) async fn run(args: &PurgeArgs, config: StoreConfig) -> Result<(), Failure> {
    let mut request = CleanRequest {
        rows_max: STEP,
        ..CleanRequest::default()
    };
    set(&mut request.retention, config.retention);
    set(&mut request.dedup_retention, config.dedup_retention);
    set(&mut request.retention, args.retention);
    set(&mut request.dedup_retention, args.dedup_retention);
    if !args.yes && !args.dry_run {
        return Err(Failure::usage(
            "purge: this removes delivered events and dedup keys for ever — add --yes, or \
             --dry-run to see how many they are",
        ));
    }
    if args.dry_run {
        let store = store::open_to_read(config).await?;
        let found = store.removable(&request).await?;
        return print(&format!("{} would be removed\n", told(found)));
    }
    let store = store::open_to_change(config).await?;
    let mut steps = Steps::new(
        Signals::listen()?,
        None,
        "{spinner} {human_pos} removed, {elapsed}",
    );
    let mut total = Cleaned::default();
    let mut was_busy = false;
    loop {
        let Some(step) = steps.step(store.clean(&request)).await else {
            return Err(stopped(total, ", and perhaps a step more"));
        };
        let step = step.map_err(|error| {
            let before = format!(
                "{} were removed before, and the same command goes on with the rest",
                told(total)
            );
            Failure::from(error).after(&before)
        })?;
        total = total.and(step);
        steps.reached(total.events + total.dedup_keys);
        if !step.more && !step.busy {
            break;
        }
        if step.busy {
            if !std::mem::replace(&mut was_busy, true) {
                steps.warn("another cleaner is at work: waiting for a turn between its steps");
            }
            steps.pause(TURN).await;
        }
        if steps.is_stopping() {
            return Err(stopped(total, ""));
        }
    }
    if let Some(notice) = total.notice {
        steps.warn(notice);
    }
    steps.finish();
    print(&format!("{} removed\n", told(total)))
}

fn told(cleaned: Cleaned) -> String {
    let Cleaned {
        events, dedup_keys, ..
    } = cleaned;
    let partitions = match cleaned.partitions {
        0 => String::new(),
        count => format!(", and {count} partitions with their events,"),
    };
    format!("{events} delivered events and {dedup_keys} dedup keys{partitions}")
}

/// What an operator who stopped it needs to know.
fn stopped(total: Cleaned, unknown: &str) -> Failure {
    Failure::interrupted(format!(
        "purge: stopped by a signal; {} were removed{unknown} — the same command goes on with the \
         rest",
        told(total)
    ))
}
