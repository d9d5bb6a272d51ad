//! The publisher on real servers: a shared one, whose URL is in `OUTBOX_TEST_REDIS_URL`, and
//! private ones where a test changes settings or kills (`OUTBOX_TEST_REDIS_BIN`, by default
//! `redis-server`).

mod access;
mod failover;
mod fidelity;
mod log;
mod outages;
mod refusals;
mod states;
mod suite;
mod support;
mod tls;
mod trimming;
