//! The publisher on real servers: private ones (`OUTBOX_TEST_NATS_BIN`, by default `nats-server`),
//! and the shared one, whose URL is in `OUTBOX_TEST_NATS_URL`, where a test leaves it as it is.

mod access;
mod fidelity;
mod log;
mod outages;
mod refusals;
mod suite;
mod support;
mod tls;
