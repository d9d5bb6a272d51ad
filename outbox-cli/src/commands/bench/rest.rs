//! What became of events that this run did not deliver.

use outbox_core::{
    AcquireRequest, ClaimLimit, DeadFilter, Lane, OutboxStore, Result, TopicPattern, TopicSet,
    WorkerId,
};
use serde::Serialize;
use uuid::Uuid;

use super::ledger::{Ledger, Missing};

/// Events that are looked at; beyond that only the least number is told.
const LOOKED_AT_MAX: u32 = 100_000;

/// Topics among which this one's failures are looked for.
const TOPICS_MAX: u32 = 1_000;

const CLAIM: ClaimLimit = ClaimLimit {
    events: 500,
    bytes: 4 << 20,
};

/// Events that were written and not delivered here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Rest {
    total: u32,
    /// Due in the store.
    waiting: u32,
    /// There may be more that wait, counted as `elsewhere`.
    waiting_at_least: bool,
    /// Failed, alone or with their topic, and due later.
    failed: u32,
    dead: u32,
    /// None of these: in flight with another relay, or delivered by it; in ordered stores perhaps held
    /// behind one that failed.
    elsewhere: u32,
}

impl Rest {
    /// Looks for them. The relay of this run must have ended.
    ///
    /// A store counts what is due over all topics only. So it is claimed as a relay would, for this
    /// topic alone, and given back untouched.
    pub(super) async fn look(
        store: &dyn OutboxStore,
        ledger: &Ledger,
        topic: &str,
        dead: &DeadFilter,
    ) -> Result<Self> {
        let dead = number(store.count(dead).await?);
        let failing = store.failing(LOOKED_AT_MAX, TOPICS_MAX).await?.topics;
        let failing = failing.iter().find(|failing| failing.topic == topic);
        let failed = failing.map_or(0, |failing| number(failing.waiting.value));
        let topics = TopicSet::new([TopicPattern::Exact(topic.to_owned())])?;
        let worker = WorkerId(format!("bench-{}", Uuid::new_v4().simple()));
        let request = AcquireRequest {
            route: "bench",
            topics: &topics,
            worker: &worker,
            held: &[],
        };
        let (mut looked_at, mut found) = (0, Ok(()));
        for lane in store.acquire(&request).await?.lanes {
            if found.is_ok() {
                found = claim_all(&*lane, ledger, &mut looked_at).await;
            }
            // In any case, or they would wait for the end of their lease.
            found = found.and(lane.release().await);
        }
        found?;
        let Missing { total, waiting } = ledger.missing();
        // Others of the topic may have failed too.
        let failed = failed.min(total.saturating_sub(waiting + dead));
        Ok(Self {
            total,
            waiting,
            waiting_at_least: looked_at >= LOOKED_AT_MAX,
            failed,
            dead,
            elsewhere: total.saturating_sub(waiting + dead + failed),
        })
    }

    /// Of `written` events.
    pub(super) fn text(&self, written: u32) -> String {
        let mut parts = Vec::new();
        let more = if self.waiting_at_least {
            "or more "
        } else {
            ""
        };
        for (count, what) in [
            (self.waiting, format!("{more}wait in the outbox")),
            (self.failed, "failed and wait for a retry".to_owned()),
            (self.dead, "are dead letters".to_owned()),
            (
                self.elsewhere,
                "were taken by another relay, or are held behind one that failed".to_owned(),
            ),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        let what = parts.join(", ");
        format!(
            "{} of {written} events were not delivered here: {what}",
            self.total
        )
    }
}

async fn claim_all(lane: &dyn Lane, ledger: &Ledger, looked_at: &mut u32) -> Result<()> {
    while *looked_at < LOOKED_AT_MAX {
        let batch = lane.claim(CLAIM).await?;
        if batch.is_empty() {
            break;
        }
        let rows = batch.events.len() + batch.unreadable.len();
        *looked_at += u32::try_from(rows).unwrap_or(LOOKED_AT_MAX);
        for event in &batch.events {
            ledger.found(event.id);
        }
    }
    Ok(())
}

fn number(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
