//! The suites on the in-memory store and on a small broker.

mod suites {
    mod broker;
    mod memory;
}
