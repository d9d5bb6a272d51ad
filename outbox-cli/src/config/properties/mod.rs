//! Rules of the configuration that hold for every value, tried on random ones.
//!
//! A case that once failed stays in `proptest-regressions` and is tried first.

mod layers;
mod misspelt;
mod settings;
mod text;
mod written;
