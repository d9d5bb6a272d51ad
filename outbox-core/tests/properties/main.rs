//! Rules that hold for every input, tried on random ones. `PROPTEST_CASES` sets how many.
//!
//! A case that once failed stays in `proptest-regressions` and is tried first.

mod backoff;
mod breaker;
mod delivery;
mod given;
mod settings;
mod topics;
