//! The queue on a real PostgreSQL server: `OUTBOX_TEST_POSTGRES_URL` names a superuser's database,
//! and every test makes and drops one of its own.

mod cancelled_begin;
mod claims;
mod clean;
mod conversion;
mod dead_letters;
mod enqueue;
mod explained;
mod failures;
mod fidelity;
mod leases;
mod migrate;
mod obstacles;
mod partitions;
mod plans;
mod settle;
mod skip_locked_plan;
mod suite;
mod support;
mod unreadable;
