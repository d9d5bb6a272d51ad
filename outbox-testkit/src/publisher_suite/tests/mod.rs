//! The tests, by subject.

mod delivery;
mod faults;
mod fidelity;
mod refusals;

pub use delivery::*;
pub use faults::*;
pub use fidelity::*;
pub use refusals::*;
