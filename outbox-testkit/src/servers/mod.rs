//! Private servers that a test may kill, pause and restart, and a clock that it may step. Every call blocks: they are short, and a
//! test has nothing else to do meanwhile.

mod amqp;
mod clock;
mod find;
mod kafka;
mod nats;
mod postgres;
mod process;
mod redis;
mod server;

pub use amqp::RabbitMq;
pub use clock::FakeClock;
pub use kafka::Kafka;
pub use nats::Nats;
pub use postgres::Postgres;
pub use redis::Redis;
pub use server::Server;
