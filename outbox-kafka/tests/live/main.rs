//! The publisher on real brokers: a shared one, whose URL is in `OUTBOX_TEST_KAFKA_URL`, private
//! ones where a test changes settings or kills (jars in `OUTBOX_TEST_KAFKA_BIN`), and librdkafka's
//! mock cluster for faults that no real broker makes at will.

mod access;
mod detour;
mod fidelity;
mod interop;
mod mock;
mod outages;
mod refusals;
mod silent;
mod suite;
mod support;
#[cfg(feature = "tls")]
mod tls;
