#![doc = include_str!("../docs.md")]

pub mod documents;
pub mod faulty;
pub mod invariants;
pub mod log;
pub mod memory;
pub mod ordered_suite;
mod port;
pub mod program;
pub mod proxy;
pub mod publisher_suite;
pub mod publishing;
pub mod remote;
mod run;
pub mod servers;
pub mod sim;
pub mod store_suite;

mod wait;
pub mod workload;

pub use port::Port;
pub use run::block_on;
pub use wait::eventually;
