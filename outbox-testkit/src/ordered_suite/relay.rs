//! The least of an engine that keeps order: what a relay does with blocked keys, and nothing else.

use std::collections::BTreeSet;

use outbox_core::{Batch, BatchSource, Settled, Settlement, StoredEvent, Verdict};

use crate::{
    store_suite::{
        Outbox,
        bench::{PATIENCE, Worker, texts},
    },
    wait::eventually,
};

/// A worker with one lane that knows which keys are blocked.
pub(super) struct Relay {
    pub(super) worker: Worker,
    pub(super) blocked: BTreeSet<String>,
}

impl Relay {
    pub(super) async fn start(outbox: &dyn Outbox, name: &str) -> Self {
        let worker = Worker::start(outbox, name).await;
        assert!(worker.store.ordered(), "the suite is for ordered stores");
        let blocked = worker.lane().blocked().await.expect("blocked keys");
        let unique: BTreeSet<String> = blocked.iter().cloned().collect();
        assert_eq!(
            unique.len(),
            blocked.len(),
            "a key is named twice: {blocked:?}"
        );
        Self {
            worker,
            blocked: unique,
        }
    }

    /// Verdicts for a batch: `decide` is the publish, and is asked about an event only when nothing
    /// earlier of its key stands in the way.
    pub(super) fn verdicts(
        &mut self,
        batch: &Batch,
        mut decide: impl FnMut(&StoredEvent) -> Verdict,
    ) -> Vec<Settlement> {
        let mut returning = false;
        let mut failed = BTreeSet::new();
        let mut settlements = Vec::new();
        for event in &batch.events {
            let key = event.key.clone();
            let behind = key.as_ref().is_some_and(|key| {
                failed.contains(key)
                    || (batch.source == BatchSource::Stream && self.blocked.contains(key))
            });
            let verdict = if returning && batch.source == BatchSource::Stream {
                Verdict::Return
            } else if behind {
                Verdict::Hold
            } else {
                decide(event)
            };
            returning |= verdict == Verdict::Return;
            let blocks = match verdict {
                Verdict::Retry { .. } | Verdict::Defer { .. } | Verdict::Hold => true,
                Verdict::Dead { hold_key, .. } => hold_key,
                Verdict::Return => batch.source == BatchSource::Parked,
                Verdict::Done => false,
            };
            if let Some(key) = key.filter(|_| blocks) {
                failed.insert(key);
            }
            settlements.push(Settlement {
                position: event.position,
                verdict,
            });
        }
        self.blocked.extend(failed);
        settlements
    }

    /// Settles and learns which keys are free.
    pub(super) async fn settle(&mut self, batch: &Batch, settlements: &[Settlement]) -> Settled {
        let settled = self.worker.settle(batch, settlements).await;
        for key in &settled.unblocked {
            self.blocked.remove(key);
        }
        // A batch that was claimed before a key was freed may park an event of it all the same.
        let held = settlements.iter().filter(|of| of.verdict == Verdict::Hold);
        for position in held.map(|of| of.position) {
            let event = batch.events.iter().find(|event| event.position == position);
            self.blocked
                .extend(event.and_then(|event| event.key.clone()));
        }
        settled
    }

    /// One batch from the source, with these payloads in this order, within the patience.
    pub(super) async fn expect(&self, source: BatchSource, payloads: &[&str]) -> Batch {
        let batch = self.worker.claim_some(100).await;
        assert_eq!(
            (texts(&batch.events).as_slice(), batch.source),
            (
                payloads
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .as_slice(),
                source,
            )
        );
        batch
    }

    /// One batch as above, all of it decided the same way.
    pub(super) async fn work(
        &mut self,
        source: BatchSource,
        payloads: &[&str],
        decide: impl FnMut(&StoredEvent) -> Verdict,
    ) -> Settled {
        let batch = self.expect(source, payloads).await;
        let settlements = self.verdicts(&batch, decide);
        self.settle(&batch, &settlements).await
    }

    /// Nothing is due now, asked more than once: sources may be asked in turns.
    pub(super) async fn assert_nothing_due(&self) {
        for _ in 0..3 {
            self.worker.assert_drained().await;
        }
    }

    /// Delivers whatever comes until so many events are done, in the order of their delivery.
    pub(super) async fn deliver(&mut self, count: usize) -> Vec<StoredEvent> {
        let mut done: Vec<StoredEvent> = Vec::new();
        let all = eventually(PATIENCE, async || {
            let batch = self.worker.claim(7).await;
            if !batch.is_empty() {
                let settlements = self.verdicts(&batch, |_| Verdict::Done);
                self.settle(&batch, &settlements).await;
                let delivered = batch.events.iter().zip(&settlements);
                let delivered = delivered.filter(|(_, of)| of.verdict == Verdict::Done);
                done.extend(delivered.map(|(event, _)| event.clone()));
            }
            (done.len() >= count).then_some(())
        });
        let enough = all.await.is_some();
        assert!(
            enough,
            "{} of {count} delivered: {:?}",
            done.len(),
            texts(&done)
        );
        done
    }
}
