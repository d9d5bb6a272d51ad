//! Every command on a file.

use std::time::Duration;

use outbox_testkit::{block_on, eventually};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::Place;

#[test]
fn a_file_that_can_not_be_used_is_told_with_what_to_do() {
    let place = Place::new();
    for command in [&["status"][..], &["relay", "--publisher", "stdout"]] {
        let said = place.refused(command);
        assert!(
            said.contains("`migrate` makes a new file") && said.contains("outbox.db"),
            "{said}"
        );
        assert!(!place.path("outbox.db").exists(), "it was made in passing");
    }
    let said = place.refused(&["migrate", "--store-url", "sqlite:missing/outbox.db"]);
    assert!(said.contains("the folder must exist"), "{said}");

    std::fs::write(place.path("outbox.db"), "no database at all\n".repeat(100)).unwrap();
    let said = place.refused(&["status"]);
    assert!(said.contains("no SQLite database"), "{said}");

    let said = place.refused(&["migrate", "--schema", "x"]);
    assert!(said.contains("has no schemas"), "{said}");
    let said = place.refused(&["status", "--store-url", "sqlite::memory:"]);
    assert!(said.contains("name a file"), "{said}");
}

#[test]
fn an_event_goes_from_enqueue_to_the_relay_and_through_the_dead_letters() {
    block_on(async {
        let place = Place::new();
        let said = place.refused(&["migrate", "--check"]);
        assert!(said.contains("`migrate` makes a new file"), "{said}");
        assert_eq!(place.run(&["migrate"]), "made the schema at version 1\n");
        assert!(place.run(&["migrate"]).contains("nothing to do"));
        place.run(&["migrate", "--check"]);

        let enqueue = |key: &str, payload: &str| {
            let event = ["enqueue", "--topic", "t", "--type", "T", "--key", key];
            place.run(&[&event[..], &["--payload", payload]].concat());
        };
        enqueue("a", r#"{"n":1}"#);
        enqueue("b", &format!(r#"{{"n":"{}"}}"#, "x".repeat(5_000)));
        enqueue("b", r#"{"n":2}"#);
        assert_eq!(place.count("pending"), 3);

        // The second one is too large for this relay, and the third waits behind it.
        let mut command = place.command(&["relay", "--publisher", "stdout"]);
        command.env("OUTBOX__STORE__EVENT_BYTES_MAX", "1000");
        let mut relay = place.start(command);
        until(&place, "dead", 1).await;
        until(&place, "held", 1).await;
        assert_eq!(place.published().len(), 1);
        relay.signal(Signal::TERM);
        assert!(relay.wait().success());

        let listed = place.run(&["dead", "list", "--json"]);
        let letter: Value = serde_json::from_str(listed.trim()).unwrap();
        assert_eq!(
            (&letter["key"], &letter["error_kind"]),
            (&"b".into(), &"too_large".into())
        );
        place.run(&["dead", "requeue", "--key", "b"]);
        let mut relay = place.relay("30s");
        let all = eventually(Duration::from_secs(30), async || {
            (place.published().len() == 3).then_some(())
        });
        all.await.expect("both of the key come");
        until(&place, "pending", 0).await;
        relay.signal(Signal::TERM);
        assert!(relay.wait().success());
        let last = place.published().pop().unwrap();
        assert_eq!(last["payload"]["n"], 2, "the held one went before its head");
    });
}

async fn until(place: &Place, counted: &str, number: u64) {
    let reached = eventually(Duration::from_secs(30), async || {
        (place.count(counted) == number).then_some(())
    });
    reached
        .await
        .unwrap_or_else(|| panic!("{counted}: {}", place.status()));
}
