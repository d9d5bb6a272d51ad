//! Judges what happened in a run by the invariants: one checker for the simulation and for the tests
//! with real programs and servers.
//!
//! A test gathers a [`History`]. What writers did and consumers saw is enough for I1, I2, I4 and I5;
//! where the calls of relays can be watched, [`Fact`]s add I3, I6, I7, I8 and I9.

mod check;
mod facts;
mod history;
mod order;
mod relay;
mod violation;

pub use check::{KeyOrder, Report, check};
pub use facts::{Answer, ClaimedEvent, Fact, Moment, Place, Rules, Standing, Written};
pub use history::{History, Sighting};
pub use violation::{Violation, Violations};
