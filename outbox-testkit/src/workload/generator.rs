//! Orders as a service would write them, the same for the same seed.

use std::{ops::RangeInclusive, time::Duration};

use outbox_core::Event;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use uuid::Uuid;

/// What is written.
#[derive(Debug, Clone)]
pub struct WorkloadOptions {
    /// The same seed makes the same workload, ids included.
    pub seed: u64,
    /// Transactions in all.
    pub transactions: usize,
    /// Keys (order numbers) that they are spread over.
    pub keys: usize,
    /// Topics, one of which each event gets.
    pub topics: Vec<String>,
    /// Events of a transaction. All of one key.
    pub events: RangeInclusive<usize>,
    /// Bytes of a payload.
    pub payload_bytes: RangeInclusive<usize>,
    /// Of 100 transactions, how many are rolled back.
    pub rolled_back_percent: u32,
    /// Of 100 transactions, how many stay open for the hold time.
    pub long_percent: u32,
    /// How long those stay open.
    pub hold: Duration,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            transactions: 1_000,
            keys: 100,
            topics: vec!["orders".to_owned()],
            events: 1..=1,
            payload_bytes: 200..=400,
            rolled_back_percent: 10,
            long_percent: 1,
            hold: Duration::from_secs(2),
        }
    }
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It commits.
    Commit,
    /// It rolls back: its events must never be seen.
    Rollback,
}

/// One transaction to be carried out.
#[derive(Debug, Clone)]
pub struct PlannedTransaction {
    /// The key of all its events. Writers that want order lock it before they enqueue.
    pub key: String,
    /// What it enqueues, in order.
    pub events: Vec<Event>,
    /// How it ends.
    pub fate: Fate,
    /// How long it stays open between its last insert and its end.
    pub hold: Duration,
}

/// The transactions, one after the other.
#[derive(Debug)]
pub struct Workload {
    options: WorkloadOptions,
    rng: StdRng,
    made: usize,
}

impl Workload {
    /// A workload of these options.
    pub fn new(options: WorkloadOptions) -> Self {
        Self {
            rng: StdRng::seed_from_u64(options.seed),
            options,
            made: 0,
        }
    }

    fn event(&mut self, key: &str, number: usize) -> Event {
        let id = uuid::Builder::from_random_bytes(self.rng.random()).into_uuid();
        let topics = &self.options.topics;
        let topic = topics.get(self.rng.random_range(0..topics.len().max(1)));
        let length = self.rng.random_range(self.options.payload_bytes.clone());
        let mut payload = format!("{{\"order\":\"{key}\",\"n\":{number},\"fill\":\"");
        while payload.len() + 2 < length {
            payload.push(char::from(self.rng.random_range(b'a'..=b'z')));
        }
        payload.push_str("\"}");
        build(
            id,
            topic.map_or("orders", String::as_str),
            key,
            number,
            payload,
        )
    }
}

/// Everything here is within the limits by construction; a workload over them (a payload of
/// megabytes) is a mistake of the test, named by the panic.
fn build(id: Uuid, topic: &str, key: &str, number: usize, payload: String) -> Event {
    Event::new(topic, "OrderChanged")
        .id(id)
        .aggregate("order", key)
        .content_type("application/json")
        .header("n", number.to_string())
        .bytes(payload)
        .expect("the workload's options are within the event's limits")
}

impl Iterator for Workload {
    type Item = PlannedTransaction;

    fn next(&mut self) -> Option<PlannedTransaction> {
        if self.made == self.options.transactions {
            return None;
        }
        let number = self.made;
        self.made += 1;
        let key = format!(
            "order-{}",
            self.rng.random_range(0..self.options.keys.max(1))
        );
        let count = self.rng.random_range(self.options.events.clone());
        let events = (0..count).map(|_| self.event(&key, number)).collect();
        let rolled_back = self.rng.random_range(0..100) < self.options.rolled_back_percent;
        let long = self.rng.random_range(0..100) < self.options.long_percent;
        Some(PlannedTransaction {
            key,
            events,
            fate: if rolled_back {
                Fate::Rollback
            } else {
                Fate::Commit
            },
            hold: if long {
                self.options.hold
            } else {
                Duration::ZERO
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_workload() {
        let make = |seed| {
            let options = WorkloadOptions {
                seed,
                events: 0..=3,
                ..WorkloadOptions::default()
            };
            Workload::new(options)
                .map(|tx| (tx.events, tx.fate, tx.hold))
                .collect::<Vec<_>>()
        };
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
        let fates = make(7);
        let rolled_back = fates
            .iter()
            .filter(|(_, fate, _)| *fate == Fate::Rollback)
            .count();
        assert!(
            (50..200).contains(&rolled_back),
            "{rolled_back} of 1,000 for 10 %"
        );
        assert!(fates.iter().any(|(.., hold)| !hold.is_zero()));
    }

    #[test]
    fn payloads_have_the_length_asked_for() {
        let options = WorkloadOptions {
            payload_bytes: 300..=300,
            ..WorkloadOptions::default()
        };
        for tx in Workload::new(options).take(20) {
            assert_eq!(tx.events[0].payload().map(bytes::Bytes::len), Some(300));
        }
    }
}
