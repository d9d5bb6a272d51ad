//! The suites on the in-memory store and on a small broker; the proxy, the servers, the
//! child processes, the faults.

mod broker;
mod faulty;
mod memory;
mod program;
mod proxy;
mod remote;
mod servers;
