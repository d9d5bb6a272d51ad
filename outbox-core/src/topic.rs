//! Topic patterns: which topics a route or a policy takes.

use std::{fmt, str::FromStr};

use crate::error::{Error, ErrorKind, Result};

/// A topic, a prefix followed by `*`, or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicPattern {
    /// Every topic.
    All,
    /// Topics that start with this.
    Prefix(String),
    /// This topic.
    Exact(String),
}

impl TopicPattern {
    /// Whether the topic fits.
    pub fn matches(&self, topic: &str) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => topic.starts_with(prefix.as_str()),
            Self::Exact(exact) => topic == exact,
        }
    }
}

impl FromStr for TopicPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what| {
            Error::new(ErrorKind::Configuration, "read topic pattern", what)
                .context("pattern", text)
        };
        match text.strip_suffix('*') {
            _ if text.is_empty() => Err(wrong("it is empty; use * for all topics")),
            Some("") => Ok(Self::All),
            Some(prefix) if !prefix.contains('*') => Ok(Self::Prefix(prefix.to_owned())),
            None if !text.contains('*') => Ok(Self::Exact(text.to_owned())),
            _ => Err(wrong("a * may only stand at the end")),
        }
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Exact(exact) => f.write_str(exact),
        }
    }
}

/// The topics of a route: any of several patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSet(Vec<TopicPattern>);

impl TopicSet {
    /// Every topic.
    pub fn all() -> Self {
        Self(vec![TopicPattern::All])
    }

    /// These patterns.
    ///
    /// # Errors
    /// `Configuration` when there is none: such a route would never send anything.
    pub fn new(patterns: impl IntoIterator<Item = TopicPattern>) -> Result<Self> {
        let patterns: Vec<_> = patterns.into_iter().collect();
        if patterns.is_empty() {
            return Err(Error::new(
                ErrorKind::Configuration,
                "read topics of a route",
                "there is no pattern; use * for all topics",
            ));
        }
        Ok(Self(patterns))
    }

    /// Whether the topic fits one of them.
    pub fn matches(&self, topic: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(topic))
    }

    /// Whether every topic fits, so that a store need not filter.
    pub fn is_all(&self) -> bool {
        self.0.contains(&TopicPattern::All)
    }

    /// The patterns.
    pub fn patterns(&self) -> &[TopicPattern] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_inside_is_refused() {
        assert!("a*b".parse::<TopicPattern>().is_err());
        assert!("**".parse::<TopicPattern>().is_err());
        assert!("".parse::<TopicPattern>().is_err());
        assert!(TopicSet::new([]).is_err());
        assert!(TopicSet::all().is_all());
    }
}
