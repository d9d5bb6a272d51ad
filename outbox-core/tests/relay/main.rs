//! The relay engine over the in-memory ordered store, under paused time.

mod cleaning;
mod faults;
mod isolation;
mod lifecycle;
mod order;
mod policies;
mod routes;
mod script;
mod store_down;
#[cfg(feature = "otel")]
mod trace;
