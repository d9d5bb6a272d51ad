//! The suites on the in-memory store.

mod suites {
    mod memory;
}
