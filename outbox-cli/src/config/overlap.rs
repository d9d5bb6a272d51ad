//! Routes that would compete for a topic.

use outbox_core::TopicPattern;

use super::resolve::RouteConfig;
use crate::exit::Failure;

/// In a queue each event goes to one route: with two that take its topic, chance would choose.
pub(crate) fn refuse(routes: &[RouteConfig]) -> Result<(), Failure> {
    for (index, one) in routes.iter().enumerate() {
        for other in &routes[index + 1..] {
            let pairs = one
                .topics
                .patterns()
                .iter()
                .flat_map(|a| other.topics.patterns().iter().map(move |b| (a, b)));
            if let Some((a, b)) = pairs.into_iter().find(|(a, b)| overlap(a, b)) {
                return Err(Failure::usage(format!(
                    "configuration: topics `{a}` of route `{}` and `{b}` of route `{}` overlap, \
                     and in this store each event goes to one route — make them disjoint",
                    one.name, other.name
                )));
            }
        }
    }
    Ok(())
}

fn overlap(a: &TopicPattern, b: &TopicPattern) -> bool {
    match (a, b) {
        (TopicPattern::All, _) | (_, TopicPattern::All) => true,
        (TopicPattern::Exact(topic), pattern) | (pattern, TopicPattern::Exact(topic)) => {
            pattern.matches(topic)
        }
        (TopicPattern::Prefix(a), TopicPattern::Prefix(b)) => {
            a.starts_with(b.as_str()) || b.starts_with(a.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All texts of up to four letters of two, which is longer than any pattern below.
    fn topics() -> Vec<String> {
        let mut all = vec![String::new()];
        let mut longest = all.clone();
        for _ in 0..4 {
            longest = longest
                .iter()
                .flat_map(|topic| [format!("{topic}a"), format!("{topic}b")])
                .collect();
            all.extend_from_slice(&longest);
        }
        all
    }

    proptest! {
        #[test]
        fn patterns_overlap_exactly_when_some_topic_fits_both(a in "[ab]{1,3}|[ab]{0,3}\\*", b in "[ab]{1,3}|[ab]{0,3}\\*") {
            let (one, other): (TopicPattern, TopicPattern) = (a.parse().unwrap(), b.parse().unwrap());
            let shared = topics().iter().any(|topic| one.matches(topic) && other.matches(topic));
            prop_assert_eq!(overlap(&one, &other), shared);
        }
    }

    #[test]
    fn patterns_overlap_when_a_topic_fits_both() {
        for (a, b, expected) in [
            ("*", "x", true),
            ("x", "x", true),
            ("x", "y", false),
            ("x*", "xy", true),
            ("x*", "y", false),
            ("x*", "xy*", true),
            ("x*", "y*", false),
        ] {
            let (one, other) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(overlap(&one, &other), expected, "{a} {b}");
            assert_eq!(overlap(&other, &one), expected, "{b} {a}");
        }
    }
}
