//! The suites on the in-memory store and on a small broker; the proxy, the servers, the faults.

mod broker;
mod faulty;
mod memory;
mod proxy;
mod servers;
