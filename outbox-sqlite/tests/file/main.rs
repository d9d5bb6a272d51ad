//! The store on real files, each test on one of its own.

mod clock;
mod failures;
mod suite;
mod support;
mod writing;
