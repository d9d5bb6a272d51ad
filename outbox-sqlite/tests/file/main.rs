//! The store on real files, each test on one of its own.

mod failures;
mod suite;
mod support;
mod writing;
