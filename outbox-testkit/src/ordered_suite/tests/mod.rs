//! The tests, by subject.

mod operators;
mod parking;
mod random;
mod takeover;

pub use operators::*;
pub use parking::*;
pub use random::*;
pub use takeover::*;
