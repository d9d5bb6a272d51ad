//! Scripted faults around any store or publisher.

mod publisher;
mod recording;
mod script;
mod store;

pub use publisher::{FaultyPublisher, PublishFault};
pub use recording::{Delivery, RecordingPublisher};
pub use script::Script;
pub use store::{FaultyStore, StoreCall, StoreFault};
