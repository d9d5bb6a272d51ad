//! Small real programs, each a binary of this crate: `place_order` writes an event in its own
//! transaction, `embedded_relay` runs the relay inside a service.
//!
//! What follows is the README: its Rust code is compiled as a test of this crate.
#![doc = include_str!("../../README.md")]
