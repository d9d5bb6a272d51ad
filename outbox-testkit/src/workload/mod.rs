//! What writers do and what consumers must have seen: a seeded workload and the checker of the
//! invariants.

mod checker;
mod generator;
mod history;

pub use checker::{KeyOrder, Report, Violation, Violations, check};
pub use generator::{Fate, PlannedTransaction, Workload, WorkloadOptions};
pub use history::{History, Sighting};
