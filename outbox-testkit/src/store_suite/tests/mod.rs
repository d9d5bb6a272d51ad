//! The tests, by subject.

mod claims;
mod dead_letters;
mod dedup;
mod failing;
mod fidelity;
mod leases;
mod operations;
mod retention;
mod transactions;
mod verdicts;

pub use claims::*;
pub use dead_letters::*;
pub use dedup::*;
pub use failing::*;
pub use fidelity::*;
pub use leases::*;
pub use operations::*;
pub use retention::*;
pub use transactions::*;
pub use verdicts::*;
