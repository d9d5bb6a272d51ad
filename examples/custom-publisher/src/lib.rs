//! A publisher of one's own, to Redis lists; `tests/suite.rs` proves it by the suite for all.

mod publisher;

pub use publisher::ListPublisher;
