//! `status`

use redis::Commands;
use serde_json::{Value, json};

use crate::support::{Place, lines, redis, stream, wait};

fn state(place: &Place) -> Value {
    let text = place.outbox(&["status", "--json"]).success();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_topic_that_fails_is_told_with_its_cause_until_it_works_again() {
    let place = Place::migrated();
    let topic = place.topic("t");
    assert_eq!(state(&place)["failing"], json!([]));
    // A stream can't have the name of a string.
    let _: () = redis().set(&topic, "no stream").unwrap();
    let input = lines(&topic, 3);
    place
        .outbox_with(&["enqueue", "--stdin"], input.as_bytes())
        .success();
    let relay = place.relay(&[]);
    let mut failing = Value::Null;
    // Between its retries the events are due or in flight for a moment.
    wait("all events of the topic as failing", || {
        failing = state(&place)["failing"].clone();
        failing[0]["waiting"]["value"] == 3
    });
    assert_eq!(failing.as_array().unwrap().len(), 1, "{failing}");
    let of = &failing[0];
    assert_eq!(of["topic"], topic, "{of}");
    assert_eq!(of["waiting"]["at_least"], false, "{of}");
    assert_eq!(of["error_kind"], "wrong_topic_type", "{of}");
    let error = of["error"].as_str().unwrap();
    assert!(error.contains("wrong_topic_type"), "{of}");
    assert!(of["remedy"].is_string(), "{of}");
    let retry_in = of["retry_in_seconds"].as_f64().unwrap();
    assert!((0.0..=15.0).contains(&retry_in), "the breaker's cap: {of}");
    wait("the same as text", || {
        let text = place.outbox(&["status"]).success();
        let line = text.lines().find(|line| line.starts_with(&topic));
        line.is_some_and(|line| line.ends_with(error) && line.contains("  3  "))
    });

    let _: () = redis().del(&topic).unwrap();
    wait("the events", || stream(&topic).len() == 3);
    wait("an end of the failure", || {
        let state = state(&place);
        state["failing"] == json!([]) && state["scheduled"]["value"] == 0
    });
    relay.stop();
}
