//! What a store does with what is delivered.

use serde::Deserialize;

/// What becomes of a delivered event's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneMode {
    /// It stays with the status `done`, for audit, until it is cleaned after its retention.
    #[default]
    Keep,
    /// It is deleted as it is settled.
    Delete,
}

impl DoneMode {
    /// `Keep`, or else `Delete`.
    pub const fn kept(is_kept: bool) -> Self {
        if is_kept { Self::Keep } else { Self::Delete }
    }
}
