//! The flags of `outbox bench`.

use std::time::Duration;

use clap::Args;

use crate::{
    args::{RelayArgs, duration, secret},
    config::Secret,
};

/// Each event is remembered until the end, with its times: about 60 bytes.
const EVENTS_MAX: i64 = 1_000_000;

/// More than any broker takes; the limits of an event are lower and tell themselves.
const SIZE_MAX: i64 = 16 << 20;

/// More sessions than that are a test of the database, and few servers admit them.
const WRITERS_MAX: i64 = 100;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Events written before the relay starts; then up to as many again while it runs.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=EVENTS_MAX))]
    pub(crate) events: u32,
    /// Bytes of each payload.
    #[arg(long, default_value_t = 256, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=SIZE_MAX))]
    pub(crate) size: u32,
    /// Different keys, in turn.
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keys: u32,
    /// Where the events go. Take a topic that nobody consumes; a route must take it.
    #[arg(long, default_value = "outbox.bench")]
    pub(crate) topic: String,
    /// Connections that write at the same time.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=WRITERS_MAX))]
    pub(crate) writers: u32,
    /// Events a second that are written while the relay runs. Default: a tenth of what it delivered
    /// from the backlog.
    #[arg(long, value_name = "N/s", value_parser = rate)]
    pub(crate) rate: Option<u32>,
    /// Give up when nothing was delivered for this long.
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// The broker, as for `relay`.
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub(crate) publisher_url: Option<Secret>,
    /// Really write the events and send them.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchArgs {
    /// What a relay would be told.
    pub(super) fn relay(&self) -> RelayArgs {
        RelayArgs {
            publisher: None,
            publisher_url: self.publisher_url.clone(),
            topics: Vec::new(),
            http: None,
            check: false,
        }
    }
}

/// `500` or `500/s`.
fn rate(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    match number.parse() {
        Ok(rate @ 1..) => Ok(rate),
        _ => Err("write a number of at least 1, as in 500/s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn a_rate_is_a_number_a_second() {
        assert_eq!((rate("500"), rate("1/s")), (Ok(500), Ok(1)));
        for wrong in ["0", "", "/s", "1.5", "-1", "5/m"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
