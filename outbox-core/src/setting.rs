//! What the settings of stores and publishers share.

use std::time::Duration;

use serde::{Deserialize as _, Deserializer, de::Error as _};

use crate::error::{Error, ErrorKind, Result};

/// The longest duration of a setting, where nothing asks for less. Points in time are a sum of now
/// and a setting, and must not overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads a duration as text with a unit, as `"30s"` or `"500ms"`: for serde's `deserialize_with`.
///
/// # Errors
/// When it is no such text.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(D::Error::custom)
}

/// Checks settings of which each must be more than zero (`true`: it is), and durations against
/// [`DURATION_MAX`].
///
/// # Errors
/// `Configuration` of this operation, naming the first setting that is out of its bounds.
pub fn check_bounds(
    operation: &'static str,
    positive: &[(&str, bool)],
    durations: &[(&str, Duration)],
) -> Result<()> {
    let wrong = |what, setting| {
        let error = Error::new(ErrorKind::Configuration, operation, what);
        Err(error.context("setting", setting))
    };
    if let Some((setting, _)) = positive.iter().find(|(_, good)| !good) {
        return wrong("the setting must be more than zero", setting);
    }
    if let Some((setting, _)) = durations.iter().find(|(_, time)| *time > DURATION_MAX) {
        return wrong("the setting must be at most 365 days", setting);
    }
    Ok(())
}
