//! The publisher on real servers: a shared one, whose URL is in `OUTBOX_TEST_AMQP_URL`, and private
//! ones where a test changes settings or kills (`OUTBOX_TEST_AMQP_BIN`, by default Debian's). A
//! server takes 10 seconds to start, so tests that need their own share one as steps of one test.

mod access;
mod fidelity;
mod interop;
mod outages;
mod queues;
mod refusals;
mod silent;
mod states;
mod suite;
mod support;
mod tls;
mod waiting;
