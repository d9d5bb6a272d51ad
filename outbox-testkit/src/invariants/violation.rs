//! What can be wrong.

use std::{collections::BTreeSet, fmt};

use uuid::Uuid;

/// What is wrong with one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// I1: it was rolled back and was published.
    RolledBackSeen(Uuid),
    /// I1: nobody ever wrote it.
    UnknownSeen(Uuid),
    /// I2: it was committed, was not seen, and is no dead letter.
    Lost(Uuid),
    /// I4: a copy differs from what was written.
    CopyDiffers(Uuid),
    /// I5: it was first seen before this earlier one of its key was.
    Overtook {
        /// The later event.
        event: Uuid,
        /// The earlier one.
        earlier: Uuid,
    },
    /// Another rule about what a relay did.
    Broken {
        /// The invariant.
        invariant: &'static str,
        /// Which fact shows it; its place in the history.
        fact: usize,
        /// What is wrong.
        what: String,
    },
}

impl Violation {
    /// The invariant's number.
    pub fn invariant(&self) -> &'static str {
        match self {
            Self::RolledBackSeen(_) | Self::UnknownSeen(_) => "I1",
            Self::Lost(_) => "I2",
            Self::CopyDiffers(_) => "I4",
            Self::Overtook { .. } => "I5",
            Self::Broken { invariant, .. } => invariant,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.invariant())?;
        match self {
            Self::RolledBackSeen(id) => write!(f, "{id} was rolled back and was published"),
            Self::UnknownSeen(id) => write!(f, "{id} was published and nobody wrote it"),
            Self::Lost(id) => write!(f, "{id} was committed, never seen, and is no dead letter"),
            Self::CopyDiffers(id) => write!(f, "a copy of {id} differs from what was written"),
            Self::Overtook { event, earlier } => {
                write!(
                    f,
                    "{event} was seen before {earlier}, which is earlier in its key"
                )
            }
            Self::Broken { fact, what, .. } => write!(f, "{what} (fact {fact})"),
        }
    }
}

/// Everything that is wrong. Prints each kind with its count and its first examples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(pub Vec<Violation>);

/// Examples printed of each invariant.
const EXAMPLES: usize = 5;

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken: BTreeSet<_> = self.0.iter().map(Violation::invariant).collect();
        for invariant in broken {
            let of: Vec<_> = self
                .0
                .iter()
                .filter(|v| v.invariant() == invariant)
                .collect();
            writeln!(f, "{invariant} is broken {} times:", of.len())?;
            for violation in of.iter().take(EXAMPLES) {
                writeln!(f, "  {violation}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}
