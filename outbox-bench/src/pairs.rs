//! What is measured beside its limit, in pairs.

use anyhow::{Context, Result};
use serde::Serialize;

use crate::stats::Spread;

/// Figures of pairs, each by the same moods of the machine.
#[derive(Default)]
pub(crate) struct Pairs {
    limits: Vec<f64>,
    measured: Vec<f64>,
}

impl Pairs {
    /// Adds a pair, in events a second, and tells it.
    pub(crate) fn push(&mut self, name: &str, limit: f64, measured: f64) {
        self.limits.push(limit);
        self.measured.push(measured);
        eprintln!(
            "{name} pair {}: limit {limit:.0}/s, measured {measured:.0}/s, ratio {:.2}",
            self.limits.len(),
            measured / limit
        );
    }

    pub(crate) fn compared(&self) -> Result<Compared> {
        let pairs = self.measured.iter().zip(&self.limits);
        let ratios: Vec<f64> = pairs.map(|(measured, limit)| measured / limit).collect();
        let spread = |values: &[f64]| Spread::of(values).context("no pairs");
        Ok(Compared {
            limit_events_per_second: spread(&self.limits)?,
            events_per_second: spread(&self.measured)?,
            ratio: spread(&ratios)?,
        })
    }
}

#[derive(Serialize)]
pub(crate) struct Compared {
    limit_events_per_second: Spread,
    events_per_second: Spread,
    ratio: Spread,
}

impl Compared {
    /// What stands above the rows of a table.
    pub(crate) fn head(name: &str, ratio: &str) -> String {
        let (limit, measured) = ("limit events/s", "events/s");
        format!("{name:<16} {limit:>24} {measured:>24} {ratio:>20}")
    }

    /// A row: medians, with the least and the greatest.
    pub(crate) fn row(&self, name: &str) -> String {
        let rate = |s: Spread| format!("{:.0} ({:.0}–{:.0})", s.median, s.min, s.max);
        let Spread { median, min, max } = self.ratio;
        let ratio = format!("{median:.2} ({min:.2}–{max:.2})");
        let limit = rate(self.limit_events_per_second);
        let measured = rate(self.events_per_second);
        format!("{name:<16} {limit:>24} {measured:>24} {ratio:>20}")
    }
}
