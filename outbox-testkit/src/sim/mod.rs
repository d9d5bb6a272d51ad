//! The simulation: the real relay engine on the in-memory store and scripted brokers, under paused
//! time, through seeded histories of crashes, outages, lost answers and operators.
//!
//! A seed decides everything, so that a failing one can be replayed step by step. The whole history
//! is judged by the [invariants](crate::invariants). `docs/simulation.md` of the workspace tells what it found, and
//! what it cannot show.

mod broker;
mod coverage;
mod mutation;
mod process;
mod scenario;
mod store;
mod story;
mod trace;
mod world;

pub use coverage::Coverage;
pub use mutation::Mutation;
pub use story::{Failure, Run, run};
