//! The relay engine: claim → publish → settle, one task per lane, until told to stop.
//!
//! Deterministic for simulation: time is tokio's (which tests pause), random numbers come from one
//! seeded source, selects are biased, maps are ordered, and no task is detached.

mod changes;
mod clean;
mod conclude;
mod config;
mod gates;
mod health;
mod lane;
mod mutation;
mod outage;
mod pace;
mod plan;
mod publish;
mod quiet;
mod route;
mod run;
mod settle;
mod start;
mod store_watch;
mod telemetry;

pub use config::{RelayConfig, Route};
pub use health::{Health, HealthReport, RouteHealth};
pub use mutation::Mutation;
pub use run::{Relay, RelayBuilder};
