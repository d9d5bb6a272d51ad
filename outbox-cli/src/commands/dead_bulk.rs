//! `outbox dead requeue | discard`

use std::{fmt::Write as _, time::Instant};

use outbox_core::{DeadFilter, DeadLetters, ErrorKind, Result as StoreResult};
use uuid::Uuid;

use super::steps::Steps;
use crate::{
    args::{DeadBulkArgs, DeadDiscardArgs},
    config::StoreConfig,
    exit::Failure,
    output::{plain, print, table},
    signals::Signals,
    store,
};

/// Rows that one statement changes: each is a short transaction, and a long job shows its progress.
const STEP: u32 = 1000;

/// Groups that a dry run lists; more are no help to anybody.
const GROUPS_MAX: u32 = 50;

/// Puts dead letters back.
pub(crate) async fn requeue(args: &DeadBulkArgs, config: StoreConfig) -> Result<(), Failure> {
    let filter = selection(args, "requeue")?;
    if args.dry_run {
        return dry_run(config, &filter, Change::Requeue).await;
    }
    let store = store::open_to_change(config).await?;
    let total = in_steps(&*store, &filter, Change::Requeue).await?;
    finish(args, total, Change::Requeue)
}

/// Removes dead letters for ever.
pub(crate) async fn discard(args: &DeadDiscardArgs, config: StoreConfig) -> Result<(), Failure> {
    let filter = selection(&args.bulk, "discard")?;
    if filter.ids.is_empty() && !args.yes && !args.bulk.dry_run {
        return Err(Failure::usage(
            "discard dead letters: this removes all that fit, for ever — add --yes, or --dry-run \
             to see how many they are",
        ));
    }
    if args.bulk.dry_run {
        return dry_run(config, &filter, Change::Discard).await;
    }
    let store = store::open_to_change(config).await?;
    let total = in_steps(&*store, &filter, Change::Discard).await?;
    finish(&args.bulk, total, Change::Discard)
}

#[derive(Clone, Copy)]
enum Change {
    Requeue,
    Discard,
}

impl Change {
    fn done(self) -> &'static str {
        match self {
            Self::Requeue => "requeued",
            Self::Discard => "discarded",
        }
    }

    async fn step(
        self,
        store: &dyn DeadLetters,
        filter: &DeadFilter,
        limit: u32,
    ) -> StoreResult<u64> {
        match self {
            Self::Requeue => store.requeue(filter, limit).await,
            Self::Discard => store.discard(filter, limit).await,
        }
    }
}

/// Changes as many as there are now, in steps, until a signal comes.
///
/// A relay that works beside it may find some of them as hopeless as before. They must not be taken
/// again, for ever or in place of others: hence the bound, and the age that grows as time passes.
async fn in_steps(
    store: &dyn DeadLetters,
    filter: &DeadFilter,
    change: Change,
) -> Result<u64, Failure> {
    let mut signals = Signals::listen()?;
    let start = Instant::now();
    let there = tokio::select! {
        there = store.count(filter) => there?,
        () = signals.next() => return Err(stopped(0, None, change)),
    };
    let mut steps = Steps::new(
        signals,
        Some(there),
        "{wide_bar} {human_pos}/{human_len} {elapsed}, {eta} left",
    );
    let mut total = 0;
    while total < there {
        let limit = u32::try_from(there - total).unwrap_or(STEP).min(STEP);
        let mut rest = filter.clone();
        if total > 0 {
            let age = filter.dead_for.unwrap_or_default();
            rest.dead_for = Some(age.saturating_add(start.elapsed()));
        }
        let Some(count) = steps.step(change.step(store, &rest, limit)).await else {
            return Err(stopped(total, Some(limit), change));
        };
        let count = count.map_err(|error| {
            let done = change.done();
            Failure::from(error).after(&format!(
                "{total} of {there} were {done} before, and the same command goes on with the rest"
            ))
        })?;
        total += count;
        steps.reached(total);
        if count < u64::from(limit) {
            break;
        }
        if steps.is_stopping() && total < there {
            return Err(stopped(total, None, change));
        }
    }
    steps.finish();
    Ok(total)
}

/// What an operator who stopped it needs to know. `unknown`: rows of a step whose end was not
/// waited for.
fn stopped(total: u64, unknown: Option<u32>, change: Change) -> Failure {
    let done = change.done();
    let more = unknown.map_or_else(String::new, |rows| format!(", and perhaps {rows} more"));
    Failure::interrupted(format!(
        "change dead letters: stopped by a signal; {total} were {done}{more} — the same command \
         goes on with the rest"
    ))
}

/// What was selected; nothing selected is a mistake and not "all".
fn selection(args: &DeadBulkArgs, verb: &str) -> Result<DeadFilter, Failure> {
    let filter = args.filter.filter(&args.ids);
    if filter == DeadFilter::default() && !args.all {
        return Err(Failure::usage(format!(
            "{verb} dead letters: none is selected — give ids, a filter such as --topic, or --all"
        )));
    }
    Ok(filter)
}

async fn dry_run(config: StoreConfig, filter: &DeadFilter, change: Change) -> Result<(), Failure> {
    let store = store::open_to_read(config).await?;
    let count = store.count(filter).await?;
    let groups = store.groups(filter, GROUPS_MAX).await?;
    let mut text = format!("{count} would be {}\n", change.done());
    if !groups.is_empty() {
        let rows: Vec<_> = groups
            .iter()
            .map(|group| {
                [
                    group.count.to_string(),
                    plain(&group.topic),
                    plain(&group.event_type),
                    group.error_kind.map_or("-", ErrorKind::as_str).to_owned(),
                ]
            })
            .collect();
        text.push_str(&table(["count", "topic", "type", "error kind"], &rows));
    }
    let listed: u64 = groups.iter().map(|group| group.count).sum();
    if listed < count {
        let _ = writeln!(
            text,
            "and {} of other topics, types or kinds",
            count - listed
        );
    }
    print(&text)
}

/// Says how many, and fails when an id that was named is no dead letter.
fn finish(args: &DeadBulkArgs, total: u64, change: Change) -> Result<(), Failure> {
    let done = change.done();
    print(&format!("{total} {done}\n"))?;
    let ids: std::collections::BTreeSet<&Uuid> = args.ids.iter().collect();
    let named = u64::try_from(ids.len()).unwrap_or(u64::MAX);
    if total < named {
        return Err(Failure::failed(format!(
            "{} of {named} ids were not {done}: they are no dead letters, or do not fit the \
             filter — `outbox dead list` shows those there are",
            named - total
        )));
    }
    Ok(())
}
