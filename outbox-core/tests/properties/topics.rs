//! Topic patterns against a matcher that goes letter by letter.

use outbox_core::{TopicPattern, TopicSet};
use proptest::{collection::vec, prelude::*};

/// Few letters, so that patterns and topics meet often; and any text at all.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab.é*]{0,5}", 1 => any::<String>()]
}

/// Texts that are patterns.
fn patterns() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[ab.é]{1,4}|[ab.é]{0,3}\\*", 1 => "[^*]{1,20}\\*?"]
}

/// As a shell would: a star stands for any letters.
fn fits(pattern: &[char], topic: &[char]) -> bool {
    match (pattern, topic) {
        ([], []) => true,
        (['*', rest @ ..], _) => {
            fits(rest, topic) || !topic.is_empty() && fits(pattern, &topic[1..])
        }
        ([p, pattern @ ..], [t, topic @ ..]) => p == t && fits(pattern, topic),
        _ => false,
    }
}

fn letters(text: &str) -> Vec<char> {
    text.chars().collect()
}

proptest! {
    #[test]
    fn a_pattern_is_any_text_with_no_star_but_at_its_end(text in texts()) {
        let is_one = !text.is_empty() && !text.chars().rev().skip(1).any(|c| c == '*');
        match text.parse::<TopicPattern>() {
            Ok(pattern) => {
                prop_assert!(is_one);
                prop_assert_eq!(pattern.to_string(), &*text);
                prop_assert_eq!(pattern.to_string().parse::<TopicPattern>().unwrap(), pattern);
            }
            Err(error) => prop_assert!(!is_one, "{error}"),
        }
    }

    #[test]
    fn a_set_takes_a_topic_when_one_of_its_patterns_does(set in vec(patterns(), 1..5), topic in texts()) {
        let parsed: Vec<TopicPattern> = set.iter().map(|text| text.parse().unwrap()).collect();
        let expected = set.iter().any(|pattern| fits(&letters(pattern), &letters(&topic)));
        let topics = TopicSet::new(parsed.clone()).unwrap();
        prop_assert_eq!(topics.matches(&topic), expected);
        prop_assert_eq!(TopicSet::new(parsed.into_iter().rev()).unwrap().matches(&topic), expected);
        prop_assert!(expected || !topics.is_all());
        prop_assert_eq!(topics.is_all(), set.iter().any(|pattern| pattern == "*"));
    }
}
