//! Private servers that a test may kill, pause and restart. Every call blocks: they are short, and a
//! test has nothing else to do meanwhile.

mod find;
mod postgres;
mod process;
mod redis;

pub use postgres::Postgres;
pub use redis::Redis;
