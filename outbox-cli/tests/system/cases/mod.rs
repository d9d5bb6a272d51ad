//! Faults that other systems of this kind had, each under its name.

mod null_payload;
