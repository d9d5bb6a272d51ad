//! The program itself, on a real PostgreSQL and real brokers.

mod amqp;
mod bad_input;
mod bench;
mod check;
mod completions;
mod creds;
mod dead;
mod dead_bulk;
mod enqueue;
mod fidelity;
mod flow;
mod kafka;
mod logs;
mod nats;
mod partitions;
mod purge;
#[allow(dead_code, reason = "each test program needs a part of it")]
#[path = "../shared/receiver.rs"]
mod receiver;
#[cfg(feature = "otlp")]
mod spans;
mod status;
mod support;
mod watch;
mod webhook;

mod relay;
