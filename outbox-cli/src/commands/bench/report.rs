//! What is printed.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

use super::{args::BenchArgs, ledger::Times, rest::Rest};
use crate::{
    exit::Failure,
    output::{plain, table},
};

/// The figures of a run; what was not reached is `None`. docs.md has the formula of each.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    topic: String,
    route: String,
    publisher: &'static str,
    store: &'static str,
    size_bytes: u32,
    keys: u32,
    writers: u32,
    write: Option<Write>,
    drain: Option<Drain>,
    live: Option<Live>,
    /// Events of the topic that are not of this run and were delivered with it.
    pub(super) others: u64,
    pub(super) undelivered: Option<Rest>,
}

#[derive(Debug, Serialize)]
struct Write {
    events: u32,
    seconds: f64,
    events_per_second: f64,
    commit_ms: Option<Percentiles>,
}

#[derive(Debug, Serialize)]
struct Drain {
    events: u32,
    seconds: f64,
    events_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Live {
    written: u32,
    events: u32,
    asked_events_per_second: f64,
    events_per_second: f64,
    commit_to_acknowledged_ms: Option<Percentiles>,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        route: String,
        publisher: &'static str,
        store: &'static str,
    ) -> Self {
        Self {
            topic: args.topic.clone(),
            route,
            publisher,
            store,
            size_bytes: args.size,
            keys: args.keys,
            writers: args.writers,
            write: None,
            drain: None,
            live: None,
            others: 0,
            undelivered: None,
        }
    }

    /// What writing took; its rate.
    pub(super) fn wrote(&mut self, times: Times) -> f64 {
        let events = times.progress.written;
        let rate = rate(events, times.writing);
        self.write = Some(Write {
            events,
            seconds: rounded(times.writing.as_secs_f64()),
            events_per_second: rate,
            commit_ms: Percentiles::of(times.commits),
        });
        rate
    }

    /// What delivering the backlog took; its rate.
    pub(super) fn drained(&mut self, times: &Times) -> f64 {
        let events = times.progress.delivered;
        let rate = rate(events, times.relaying);
        self.drain = Some(Drain {
            events,
            seconds: rounded(times.relaying.as_secs_f64()),
            events_per_second: rate,
        });
        rate
    }

    /// What events took that were to be written at this rate; the rate that was reached.
    pub(super) fn lived(&mut self, times: Times, asked_events_per_second: f64) -> f64 {
        let rate = rate(times.progress.written, times.writing);
        self.live = Some(Live {
            written: times.progress.written,
            events: times.progress.delivered,
            asked_events_per_second,
            events_per_second: rate,
            commit_to_acknowledged_ms: Percentiles::of(times.deliveries),
        });
        rate
    }

    /// Events written in all parts.
    pub(super) fn written(&self) -> u32 {
        let parts = [
            self.write.as_ref().map(|w| w.events),
            self.live.as_ref().map(|l| l.written),
        ];
        parts.into_iter().flatten().sum()
    }

    /// One object in a line.
    pub(super) fn to_json(&self) -> Result<String, Failure> {
        let object = serde_json::to_string(self);
        object
            .map(|object| object + "\n")
            .map_err(|error| Failure::failed(format!("bench: write the report as JSON: {error}")))
    }

    /// For people.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!(
            "events of {} bytes, {} keys, topic {}: {} -> {} (route {})\n\n",
            self.size_bytes,
            self.keys,
            plain(&self.topic),
            self.store,
            self.publisher,
            plain(&self.route)
        );
        let row =
            |what: String, events: u32, rate: f64| [what, events.to_string(), format!("{rate:.0}")];
        let mut rates = Vec::new();
        let mut latencies = Vec::new();
        if let Some(write) = &self.write {
            let what = format!("written by {} writers, a commit each", self.writers);
            rates.push(row(what, write.events, write.events_per_second));
            latencies.extend(write.commit_ms.as_ref().map(|p| p.row("commit")));
        }
        if let Some(drain) = &self.drain {
            let what = "delivered from the backlog".to_owned();
            rates.push(row(what, drain.events, drain.events_per_second));
        }
        if let Some(live) = &self.live {
            let asked = live.asked_events_per_second;
            let what = format!("written and delivered, {asked:.0}/s asked for");
            rates.push(row(what, live.events, live.events_per_second));
            let p = live.commit_to_acknowledged_ms.as_ref();
            latencies.extend(p.map(|p| p.row("commit to acknowledged")));
        }
        text += &table(["", "events", "events/s"], &rates);
        if !latencies.is_empty() {
            let heading = ["latency in ms", "p50", "p95", "p99", "max"];
            let _ = write!(text, "\n{}", table(heading, &latencies));
        }
        if self.others > 0 {
            let _ = write!(
                text,
                "\n{} other events of the topic were delivered in between: from an earlier run, or \
                 another writer's\n",
                self.others
            );
        }
        text +=
            "\nThe messages stay in the broker; delivered rows in the outbox go as any others.\n";
        text
    }
}

impl Percentiles {
    fn of(mut values: Vec<Duration>) -> Option<Self> {
        values.sort_unstable();
        let at = |percent| nearest_rank(&values, percent).map(ms);
        Some(Self {
            p50: at(50)?,
            p95: at(95)?,
            p99: at(99)?,
            max: at(100)?,
        })
    }

    fn row(&self, what: &str) -> [String; 5] {
        let Self { p50, p95, p99, max } = self;
        let ms = |value: &f64| format!("{value:.2}");
        [what.to_owned(), ms(p50), ms(p95), ms(p99), ms(max)]
    }
}

/// The least of the sorted values that this percentage of them is not above.
fn nearest_rank(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Milliseconds.
fn ms(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}

/// Events a second; none in no time at all.
fn rate(events: u32, time: Duration) -> f64 {
    if time.is_zero() {
        return 0.0;
    }
    rounded(f64::from(events) / time.as_secs_f64())
}

/// To three digits, which is more than any run repeats.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values = (1..=200).rev().map(Duration::from_millis).collect();
        let found = Percentiles::of(values).unwrap();
        let row = ["x", "100.00", "190.00", "198.00", "200.00"];
        assert_eq!(found.row("x"), row);
        let one = Percentiles::of(vec![Duration::from_micros(1500)]).unwrap();
        assert_eq!(one.row("x"), ["x", "1.50", "1.50", "1.50", "1.50"]);
        assert!(Percentiles::of(Vec::new()).is_none());
    }

    #[test]
    fn a_rate_over_no_time_is_none() {
        let told = |time| format!("{:.1}", rate(5, time));
        assert_eq!(told(Duration::ZERO), "0.0");
        assert_eq!(told(Duration::from_millis(500)), "10.0");
    }
}
