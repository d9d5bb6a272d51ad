//! The machine's clock is set back: what was written before lies ahead of it then.

use outbox_core::{Event, Inspect as _};

use crate::support::{File, claim};

/// Events of the stream that were written before the clock was set back are claimed at once, before
/// their followers, and none waits for the step's length.
#[tokio::test]
async fn events_written_before_a_step_back_keep_their_place() {
    let mut file = File::migrated().await;
    file.config.lanes = 1;
    let queue = file.queue().await;
    let event = |text: &str| {
        let event = Event::new("t", "Tested").key("A");
        event.bytes(text.to_owned()).unwrap()
    };
    queue.enqueue(&[event("1"), event("2")]).await.unwrap();
    // What a step back by an hour makes of rows: it is their times that move against the clock.
    file.sql(
        "UPDATE outbox_queue SET created_at = created_at + 3600000,
            next_attempt_at = next_attempt_at + 3600000",
    )
    .await;
    queue.enqueue(&[event("3")]).await.unwrap();
    let later = Event::new("t", "Tested").key("A");
    let later = later.deliver_after(std::time::Duration::from_secs(60));
    let later = later.bytes("later").unwrap();
    queue.enqueue(&[later]).await.unwrap();

    let state = queue.inspect(10).await.unwrap();
    assert_eq!((state.pending.value, state.scheduled.value), (3, 1));
    let batch = claim(&queue).await;
    let texts: Vec<&[u8]> = batch
        .events
        .iter()
        .filter_map(|e| e.payload.as_deref())
        .collect();
    assert_eq!(texts, [b"1", b"2", b"3"]);
}
