//! Values that never appear in any output (I15).

use std::{fmt, fs, path::Path};

use serde::Deserialize;

use crate::exit::Failure;

/// A secret, such as a URL with a password. `Debug` hides it and there is no `Display`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    /// Takes the text over.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for the driver that needs it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Takes the value, or reads it from the file, whose end of line does not belong to it. `key` names
/// the setting in messages.
pub(crate) fn value_or_file(
    key: &str,
    value: Option<Secret>,
    file: Option<&Path>,
) -> Result<Option<Secret>, Failure> {
    let file = match (value, file) {
        (Some(_), Some(_)) => {
            return Err(Failure::usage(format!(
                "{key} and {key}_file are both set — keep one of them"
            )));
        }
        (value, None) => return Ok(value),
        (None, Some(file)) => file,
    };
    let unreadable = |why: &dyn fmt::Display| {
        Failure::usage(format!(
            "{key}_file: can't read {}: {why} — correct the path or its permissions",
            file.display()
        ))
    };
    let bytes = fs::read(file).map_err(|error| unreadable(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is no UTF-8 text"))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(unreadable(&"it is empty"));
    }
    Ok(Some(Secret::new(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_it() {
        assert_eq!(format!("{:?}", Some(Secret::new("p@ss"))), "Some(***)");
    }

    #[test]
    fn a_value_comes_from_one_place() {
        let both = value_or_file("store.url", Some(Secret::new("x")), Some(Path::new("y")));
        assert!(
            both.unwrap_err()
                .to_string()
                .contains("store.url_file are both set")
        );
        assert_eq!(value_or_file("k", None, None).unwrap(), None);
        let missing = value_or_file("store.url", None, Some(Path::new("no/such/file")));
        assert!(missing.unwrap_err().to_string().contains("no/such/file"));
    }
}
