//! The run itself: write, drain, write while relaying.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{DeadFilter, Error, Health, OutboxStore, Relay};
use tokio::{
    task::{JoinError, JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    args::BenchArgs,
    ledger::{Ledger, Progress},
    report::Report,
    rest::Rest,
    write::{Target, start},
};
use crate::{
    commands::steps::Steps,
    config::StoreConfig,
    exit::Failure,
    output::{duration, print},
    signals::Signals,
    store,
};

/// How often the end is looked for. No figure depends on it: each event has its own times.
const TURN: Duration = Duration::from_millis(20);

/// After this long without a delivery, and then as often, it is looked whether there is still something
/// to wait for. A look takes no longer either: a store that hangs must not hold up signals.
const QUIET: Duration = Duration::from_secs(2);

/// The longest part with events written while they are relayed, unless the writers are too slow.
const LIVE_SECONDS_MAX: f64 = 10.0;

/// The part of the drained rate at which these are written.
const LIVE_PART: f64 = 0.1;

pub(super) struct Run<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) target: Arc<Target>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) store: Arc<dyn OutboxStore>,
    pub(super) store_config: StoreConfig,
    pub(super) part: Part,
    pub(super) report: Report,
}

/// The part of the run that is under way.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Events are written, and no relay runs.
    Writing,
    /// They are relayed.
    Draining,
    /// Events are written at this rate, in events a second, and relayed.
    Living(f64),
}

type Writers = JoinSet<Result<(), Failure>>;

/// A relay at work.
struct Relaying {
    task: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
    health: Health,
}

impl Relaying {
    fn start(relay: Relay) -> Self {
        let (health, stop) = (relay.health(), CancellationToken::new());
        let task = tokio::spawn(relay.run(stop.clone()));
        Self { task, stop, health }
    }

    /// Lets it finish what is in flight.
    async fn end(self) -> Result<(), Failure> {
        self.stop.cancel();
        let ended = self.task.await.map_err(|panic| failed(&panic))?;
        ended.map_err(Failure::from)
    }

    /// Why nothing is delivered, as far as the relay knows.
    fn trouble(&self) -> Option<String> {
        let report = self.health.report();
        let routes = report.routes.into_values();
        report
            .store_error
            .or_else(|| routes.into_iter().find_map(|route| route.last_error))
    }
}

/// How a part of the run ended.
enum End {
    Done,
    /// By a signal.
    Stopped,
    /// Nothing was delivered for too long.
    TimedOut,
    /// The store has nothing more to deliver.
    Gone,
    /// The relay ended by itself.
    RelayEnded,
}

impl Run<'_> {
    /// Runs all parts, prints the report and tells what was not delivered.
    pub(super) async fn finish(mut self, relay: Relay, signals: Signals) -> Result<(), Failure> {
        let template = "{msg} {wide_bar} {human_pos}/{human_len} {elapsed}, {eta} left";
        let mut steps = Steps::new(signals, Some(u64::from(self.args.events)), template);
        let mut relaying = None;
        let mut writers = Writers::new();
        let end = self
            .parts(relay, &mut steps, &mut writers, &mut relaying)
            .await;

        if steps.is_stopping() {
            steps.warn(
                "stopping: what is under way is finished; a second signal does not wait for it",
            );
        }
        self.target.stop.cancel();
        let trouble = relaying.as_ref().and_then(Relaying::trouble);
        let ended = steps.step(async {
            while writers.join_next().await.is_some() {}
            let ended = match relaying {
                Some(relaying) => relaying.end().await,
                None => Ok(()),
            };
            let rest = match self.ledger.missing().total {
                0 => None,
                _ => Some(self.rest().await),
            };
            (ended, rest)
        });
        let ended = ended.await;
        steps.finish();
        let Some((relay_ended, rest)) = ended else {
            return Err(Failure::interrupted(
                "bench: ended at once by a second signal; what is not delivered is published by the \
                 next relay that takes the topic, what was in flight after its lease",
            ));
        };
        self.conclude(end, relay_ended, rest.as_ref(), trouble)
    }

    async fn parts(
        &mut self,
        relay: Relay,
        steps: &mut Steps,
        writers: &mut Writers,
        relaying: &mut Option<Relaying>,
    ) -> Result<End, Failure> {
        let count = self.args.events;
        let first = self.ledger.begin(count);
        *writers = start(&self.target, first..first + count, self.args.writers, None);
        steps.begin("writing", count.into());
        let end = self.wait(steps, writers, None).await?;
        if !matches!(end, End::Done) {
            return Ok(end);
        }
        self.record();

        self.part = Part::Draining;
        steps.begin("delivering", count.into());
        let relaying = relaying.insert(Relaying::start(relay));
        let end = self.wait(steps, writers, Some(relaying)).await?;
        if !matches!(end, End::Done) {
            return Ok(end);
        }
        let drained = self.record();

        let rate = self
            .args
            .rate
            .map_or((drained * LIVE_PART).max(1.0), f64::from);
        self.part = Part::Living(rate);
        let count = live_events(count, rate);
        let first = self.ledger.begin(count);
        let numbers = first..first + count;
        *writers = start(&self.target, numbers, self.args.writers, Some(rate));
        steps.begin("writing and delivering", count.into());
        self.wait(steps, writers, Some(relaying)).await
    }

    /// Takes down what the part took; its rate, in events a second.
    fn record(&mut self) -> f64 {
        let times = self.ledger.times();
        match self.part {
            Part::Writing => self.report.wrote(times),
            Part::Draining => self.report.drained(&times),
            Part::Living(asked) => self.report.lived(times, asked),
        }
    }

    /// Waits until the writers are ready and, with a relay, all is delivered.
    async fn wait(
        &self,
        steps: &mut Steps,
        writers: &mut Writers,
        relaying: Option<&Relaying>,
    ) -> Result<End, Failure> {
        let (mut last, mut since) = (None, Instant::now());
        let mut looked_at = since;
        loop {
            while let Some(ended) = writers.try_join_next() {
                ended.map_err(|panic| failed(&panic))??;
            }
            let Progress { written, delivered } = self.ledger.progress();
            steps.reached(
                if relaying.is_some() {
                    delivered
                } else {
                    written
                }
                .into(),
            );
            let all = relaying.is_none() || delivered >= written;
            if last != Some(delivered) || all {
                (last, since) = (Some(delivered), Instant::now());
            }
            if writers.is_empty() && all {
                return Ok(End::Done);
            }
            if steps.is_stopping() {
                return Ok(End::Stopped);
            }
            if relaying.is_some_and(|relaying| relaying.task.is_finished()) {
                return Ok(End::RelayEnded);
            }
            if since.elapsed() > self.args.timeout {
                return Ok(End::TimedOut);
            }
            if writers.is_empty() && since.max(looked_at).elapsed() > QUIET {
                if timeout(QUIET, self.nothing_left()).await == Ok(true) {
                    return Ok(End::Gone);
                }
                looked_at = Instant::now();
            }
            steps.pause(TURN).await;
        }
    }

    /// Whether what is not delivered never will be by this run: it is dead, or the store has nothing
    /// left to deliver, of any topic.
    async fn nothing_left(&self) -> bool {
        let missing = u64::from(self.ledger.missing().total);
        // A store that fails is the relay's to tell, and the time limit's to end.
        let dead = self.store.count(&self.dead()).await;
        if dead.is_ok_and(|dead| dead >= missing) {
            return true;
        }
        self.store.inspect(1).await.is_ok_and(|found| {
            let left = [found.pending, found.scheduled, found.in_flight, found.held];
            left.iter().all(|count| count.value == 0)
        })
    }

    /// The dead letters of this run.
    fn dead(&self) -> DeadFilter {
        DeadFilter {
            topic: Some(self.args.topic.clone()),
            event_type: Some(self.target.events.event_type.clone()),
            ..DeadFilter::default()
        }
    }

    /// Prints what was measured, and fails when not all was delivered.
    fn conclude(
        mut self,
        end: Result<End, Failure>,
        relay_ended: Result<(), Failure>,
        rest: Option<&Result<Rest, Failure>>,
        trouble: Option<String>,
    ) -> Result<(), Failure> {
        // Only now: what was under way is finished.
        self.record();
        self.report.others = self.ledger.others();
        if let Some(Ok(rest)) = rest {
            self.report.undelivered = Some(*rest);
        }
        let text = if self.args.json {
            self.report.to_json()?
        } else {
            self.report.to_text()
        };
        print(&text)?;
        let written = self.report.written();
        let told = match rest {
            None => format!("all {written} events that were written are delivered"),
            Some(Ok(rest)) => rest.text(written),
            Some(Err(error)) => format!(
                "not all of {written} events were delivered, and what became of the others could not \
                 be told: {error}"
            ),
        };
        let trouble = trouble.or_else(|| self.ledger.last_failure());
        let trouble = trouble.map_or_else(String::new, |why| format!("; last failure: {why}"));
        let topic = &self.args.topic;
        match end.map_err(|failure| failure.after(&told))? {
            End::Done => relay_ended,
            End::Stopped => Err(Failure::interrupted(format!(
                "bench: stopped by a signal; {told} — a relay that takes the topic `{topic}` \
                 delivers what waits"
            ))),
            End::RelayEnded => Err(match relay_ended {
                Err(failure) => failure.after(&told),
                Ok(()) => Failure::failed(format!("bench: the relay ended; {told}")),
            }),
            End::TimedOut => Err(Failure::failed(format!(
                "bench: nothing was delivered for {}; {told}{trouble} — a relay that takes the \
                 topic `{topic}` delivers what waits",
                duration(self.args.timeout)
            ))),
            End::Gone => Err(Failure::failed(format!(
                "bench: {told}{trouble} — see `outbox dead list`, and let no other relay take the \
                 topic `{topic}` meanwhile"
            ))),
        }
    }

    /// By a store that knows nothing of this run: what it remembers of claims must not hide anything.
    async fn rest(&self) -> Result<Rest, Failure> {
        let store = store::open_to_change(self.store_config.clone()).await?;
        Ok(Rest::look(&*store, &self.ledger, &self.args.topic, &self.dead()).await?)
    }
}

/// As many again, or as many as come in time.
fn live_events(count: u32, rate: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float is cut to the range of the number"
    )]
    let in_time = (rate * LIVE_SECONDS_MAX).ceil() as u32;
    in_time.clamp(1, count)
}

fn failed(panic: &JoinError) -> Failure {
    Failure::failed(format!("bench: a task failed: {panic}"))
}

#[cfg(test)]
mod tests {
    use super::live_events;

    #[test]
    fn the_live_part_is_as_large_or_as_long_as_allowed() {
        for (count, rate, expected) in [
            (10_000, 2_000.0, 10_000),
            (10_000, 500.0, 5_000),
            (10_000, 1.0, 10),
            (5, 1.0, 5),
            (1, 4e9, 1),
        ] {
            assert_eq!(live_events(count, rate), expected, "{count} {rate}");
        }
    }
}
