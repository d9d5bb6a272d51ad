//! What writers do: a seeded workload.

mod generator;

pub use generator::{Fate, PlannedTransaction, Workload, WorkloadOptions};
