//! The whole system on real servers: writers, the program as processes, faults in between, and the
//! stream as a consumer reads it.
//!
//! Each test has a database of its own and topics that no other test uses; tests that stop servers
//! start private ones. `OUTBOX_SOAK=1` runs the cases in their full size.

mod cases;
mod end_to_end;
mod four_brokers;
mod outage;
mod poison;
#[allow(dead_code, reason = "each test program needs a part of it")]
#[path = "../shared/receiver.rs"]
mod receiver;
mod routes;
mod support;
