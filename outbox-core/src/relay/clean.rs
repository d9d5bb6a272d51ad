//! Removes what is delivered and old, beside the lanes and whether they are busy or not.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{config::RelayConfig, gates::Jitter, outage::Outage, quiet::Quiet};
use crate::{
    directive::remedy,
    error::Error,
    metric,
    retention::{CleanRequest, Cleaned},
    store::OutboxStore,
};

/// The pause behind a step, in times of what the step took: cleaning takes a quarter of one connection's
/// time. With pauses as long as the steps, inserts on a busy machine were a third slower at the 99th
/// percentile (`cargo xtask bench clean`). Within these bounds.
const PAUSE_FACTOR: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);

pub(super) struct Cleaner<'a> {
    store: &'a dyn OutboxStore,
    request: CleanRequest,
    interval: Duration,
    jitter: &'a Jitter,
    outage: Outage,
    /// A failure that only an operator can end was told, and nothing has succeeded since.
    refusal_told: bool,
    notice: Notice,
    /// What was removed and not told yet.
    untold: Cleaned,
    lines: Quiet,
}

impl<'a> Cleaner<'a> {
    pub(super) fn new(
        store: &'a dyn OutboxStore,
        config: &RelayConfig,
        jitter: &'a Jitter,
    ) -> Self {
        Self {
            store,
            request: config.clean_request(),
            interval: config.clean_interval,
            jitter,
            outage: Outage::default(),
            refusal_told: false,
            notice: Notice::default(),
            untold: Cleaned::default(),
            lines: Quiet::new(1, Duration::from_secs(60)),
        }
    }

    /// Cleans for ever. Dropped at any moment it leaves nothing half done.
    pub(super) async fn run(mut self) {
        // A fleet that starts together must not clean together.
        sleep(self.interval.mul_f64(self.jitter.unit())).await;
        loop {
            self.round().await;
            self.tell();
            sleep(self.interval.mul_f64(0.9 + 0.2 * self.jitter.unit())).await;
        }
    }

    /// Steps until nothing is left, another cleaner is at work, or one fails: then a later round goes on.
    async fn round(&mut self) {
        loop {
            let began = Instant::now();
            let cleaned = match self.store.clean(&self.request).await {
                Ok(cleaned) => cleaned,
                Err(error) => return self.failed(&error),
            };
            self.succeeded(cleaned, began.elapsed());
            if cleaned.busy || !cleaned.more {
                return;
            }
            // A table that grows as fast as it is cleaned has one round without an end.
            self.tell();
            sleep((began.elapsed() * PAUSE_FACTOR).clamp(PAUSE_MIN, PAUSE_MAX)).await;
        }
    }

    fn succeeded(&mut self, cleaned: Cleaned, took: Duration) {
        let store = self.store.name();
        metrics::histogram!(metric::CLEAN_SECONDS, "store" => store).record(took.as_secs_f64());
        for (name, count) in [
            (metric::CLEANED_EVENTS, cleaned.events),
            (metric::CLEANED_DEDUP_KEYS, cleaned.dedup_keys),
            (metric::CLEANED_PARTITIONS, cleaned.partitions),
        ] {
            metrics::counter!(name, "store" => store).increment(count);
        }
        self.untold = self.untold.and(cleaned);
        self.refusal_told = false;
        if let Some(notice) = self.notice.news(cleaned) {
            warn!(store, notice, "the store can't be kept in shape");
        }
        if let Some(ended) = self.outage.ended()
            && let Some(suppressed) = ended.line
        {
            let (failures, down_ms) = (ended.failures, ended.down_ms);
            info!(store, failures, down_ms, suppressed, "cleaning works again");
        }
    }

    /// A store that can't be cleaned grows, and events flow: this changes nothing of the relay's health.
    fn failed(&mut self, error: &Error) {
        let (store, kind) = (self.store.name(), error.kind());
        metrics::counter!(metric::STORE_FAILURES, "store" => store, "operation" => "clean", "kind" => kind.as_str())
            .increment(1);
        let line = self.outage.failed(error);
        if kind.needs_operator() && std::mem::replace(&mut self.refusal_told, true) {
            return;
        }
        if let Some(suppressed) = line {
            warn!(store, %error, suppressed, remedy = remedy(kind), "delivered events can't be removed, the store grows");
        }
    }

    /// A line, when something went and a minute has passed since the last one.
    fn tell(&mut self) {
        if self.untold.is_empty() || self.lines.line().is_none() {
            return;
        }
        let Cleaned {
            events,
            dedup_keys,
            partitions,
            ..
        } = std::mem::take(&mut self.untold);
        let store = self.store.name();
        info!(
            store,
            events, dedup_keys, partitions, "removed what was delivered and old"
        );
    }
}

/// The last notice of the store: told when it changes.
#[derive(Debug, Default)]
struct Notice(Option<&'static str>);

impl Notice {
    fn news(&mut self, cleaned: Cleaned) -> Option<&'static str> {
        // One that is busy knows of nothing.
        if cleaned.busy || self.0 == cleaned.notice {
            return None;
        }
        self.0 = cleaned.notice;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i8_a_notice_is_told_when_it_changes() {
        let step = |notice, busy| Cleaned {
            busy,
            notice,
            ..Cleaned::default()
        };
        let mut notice = Notice::default();
        for (step, told) in [
            (step(None, false), None),
            (step(Some("a"), false), Some("a")),
            (step(None, true), None),
            (step(Some("a"), false), None),
            (step(Some("b"), false), Some("b")),
            (step(None, false), None),
            (step(Some("b"), false), Some("b")),
        ] {
            assert_eq!(notice.news(step), told, "{step:?}");
        }
    }
}
