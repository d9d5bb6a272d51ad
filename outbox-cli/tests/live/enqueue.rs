//! `outbox enqueue`.

use crate::support::Place;

#[test]
fn a_dedup_key_writes_once() {
    let place = Place::migrated();
    let topic = place.topic("t");
    let one = |arguments: &[&str]| {
        let mut all = vec![
            "enqueue",
            "--topic",
            &topic,
            "--type",
            "T",
            "--payload",
            "1",
        ];
        all.extend(arguments);
        place.outbox(&all)
    };
    let first = one(&["--dedup-key", "order-1"]);
    assert_eq!(first.stdout.lines().count(), 1, "its id: {first:?}");
    let again = one(&["--dedup-key", "order-1"]);
    assert!(again.stderr.contains("known=1"), "{again:?}");
    assert_eq!(
        again.success(),
        "",
        "no id of an event that was not written"
    );
    one(&[]).success();

    let line = |key: &str| format!("{{\"topic\":\"{topic}\",\"type\":\"T\",\"payload\":1{key}}}\n");
    let input =
        line(",\"dedup_key\":\"order-1\"") + &line(",\"dedup_key\":\"order-2\"") + &line("");
    let written = place.outbox_with(&["enqueue", "--stdin"], input.as_bytes());
    assert_eq!(written.success().lines().count(), 2);
    assert_eq!(place.number("SELECT count(*) FROM outbox.queue"), 4);

    one(&["--dedup-key", ""]).failure(6, &["dedup key", "empty"]);
}
