//! I5 and I2 under a random course of failures, stops, crashes and operators.

use std::{collections::BTreeMap, time::Duration};

use outbox_core::{DeadFilter, DeadReason, StoredEvent, Verdict};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;

use crate::{
    ordered_suite::relay::Relay,
    store_suite::{
        Outbox, StoreBench,
        bench::{PATIENCE, commit, dead, event, note, retry, text},
    },
};

const EVENTS: usize = 300;
const KEYS: usize = 7;

/// Whatever happens, each key is delivered in order, whole, and once unless a relay died.
pub async fn i5_random_failures_keep_order(bench: &StoreBench) {
    for seed in 0..3 {
        let outbox = bench.fresh(Duration::from_millis(300), 1).await;
        course(&*outbox, seed).await;
    }
}

async fn course(outbox: &dyn Outbox, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut sent = 0;
    let mut delivered: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut relay = Relay::start(outbox, "relay-0").await;
    let mut lives = 1;
    let deadline = Instant::now() + PATIENCE * 3;
    while delivered.values().map(Vec::len).sum::<usize>() < EVENTS {
        assert!(
            Instant::now() < deadline,
            "seed {seed}: stuck at {delivered:?}"
        );
        let more = rng.random_range(0..30).min(EVENTS - sent);
        let events: Vec<_> = (sent..sent + more)
            .map(|n| event(&format!("key-{}", n % KEYS), &format!("{n:04}")))
            .collect();
        commit(outbox, &events).await;
        sent += more;

        let batch = relay.worker.claim(rng.random_range(1..20)).await;
        let fate = rng.random_range(0..100);
        if fate < 3 && lives < 12 {
            // Dies with the batch in flight, or stops in good order.
            if fate == 0 {
                relay.worker.lane().release().await.expect("release");
            }
            relay = Relay::start(outbox, &format!("relay-{lives}")).await;
            lives += 1;
            continue;
        }
        let mut done = Vec::new();
        let settlements = relay.verdicts(&batch, |event| {
            let verdict = decide(&mut rng);
            if verdict == Verdict::Done {
                done.push(event.clone());
            }
            verdict
        });
        if batch.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        } else {
            relay.settle(&batch, &settlements).await;
            for event in &done {
                deliver(&mut delivered, event, seed);
            }
        }
        if fate > 80 {
            relay
                .worker
                .store
                .requeue(&DeadFilter::default(), 5)
                .await
                .expect("requeue");
        }
    }
    assert_eq!(
        relay
            .worker
            .store
            .count(&DeadFilter::default())
            .await
            .expect("count"),
        0
    );
    relay.assert_nothing_due().await;
}

fn decide(rng: &mut StdRng) -> Verdict {
    let after = Duration::from_millis(rng.random_range(0..20));
    match rng.random_range(0..100) {
        0..70 => Verdict::Done,
        70..85 => retry(after),
        85..90 => Verdict::Defer {
            after,
            note: note("no such topic"),
        },
        90..93 => Verdict::Return,
        _ => dead(DeadReason::Rejected, "no", true),
    }
}

fn deliver(delivered: &mut BTreeMap<String, Vec<String>>, event: &StoredEvent, seed: u64) {
    let key = event.key.clone().expect("all have keys");
    let of_key = delivered.entry(key.clone()).or_default();
    let expected = of_key.len() * KEYS + key[4..].parse::<usize>().expect("a number");
    assert_eq!(
        text(event),
        format!("{expected:04}"),
        "seed {seed}: {key} after {of_key:?}"
    );
    of_key.push(text(event));
}

#[cfg(test)]
mod many_seeds {
    use super::*;
    use crate::{
        memory::MemoryHarness,
        store_suite::{StoreHarness as _, StoreOptions},
    };

    /// Paused time makes a course cheap: the reference store gets hundreds of them.
    #[tokio::test(start_paused = true)]
    async fn i5_the_reference_store_keeps_order() {
        for seed in 0..300 {
            let options = StoreOptions {
                lease: Duration::from_millis(300),
                lanes: 1,
            };
            course(&*MemoryHarness.fresh(options).await, seed).await;
        }
    }
}
