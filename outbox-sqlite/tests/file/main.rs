//! The store on real files, each test on one of its own.

mod suite;
mod support;
