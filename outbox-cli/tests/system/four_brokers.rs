//! One outbox, four brokers by route, and each in turn stopped: what goes to the others flows, and
//! everything arrives.

use std::time::Duration;

use outbox_core::Event;
use outbox_testkit::invariants::KeyOrder;
use tokio::{task::block_in_place, time::Instant};

use crate::support::{Place, Settings, brokers};

const EVENTS: usize = 20_000;
const STOPPED: Duration = Duration::from_secs(10);
/// Transactions while one broker is stopped.
const WRITES: usize = 50;

/// Events of one transaction: as many for each topic.
fn events(topics: &[String], first: usize, count: usize) -> Vec<Event> {
    let event = |number: usize| {
        Event::new(&topics[number % topics.len()], "Numbered")
            .key(format!("k{}", number % 997))
            .header("number", number.to_string())
            .json(&serde_json::json!({ "number": number, "filling": "x".repeat(200) }))
            .unwrap()
    };
    (first..first + count).map(event).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_brokers_each_stopped_for_10_s_get_everything() {
    let mut brokers = block_in_place(brokers::servers);
    let topics = brokers::prepare(&mut brokers).await;
    let place = Place::shared().await;
    let settings = Settings::relay().set("store.url", place.url());
    let relay = brokers::routed(settings, &brokers).started().await;
    let done = |topic: &str| format!("status = 'done' AND topic = '{topic}'");

    let per_write = EVENTS / brokers.len() / WRITES;
    let mut written: Vec<Event> = vec![];
    for stopped in 0..brokers.len() {
        block_in_place(|| brokers[stopped].server().stop().unwrap());
        let since = Instant::now();
        let before = written.len() / topics.len();
        place.until_count(&done(&topics[stopped]), before).await;
        for write in 1..=WRITES {
            let new = events(&topics, written.len(), per_write);
            place.enqueue(&new).await;
            written.extend(new);
            let due = STOPPED * u32::try_from(write).unwrap() / u32::try_from(WRITES).unwrap();
            tokio::time::sleep_until(since + due).await;
        }
        for (number, topic) in topics.iter().enumerate() {
            let expected = if number == stopped {
                before
            } else {
                written.len() / topics.len()
            };
            place.until_count(&done(topic), expected).await;
        }
        block_in_place(|| brokers[stopped].server().restart().unwrap());
        place
            .until_count(&done(&topics[stopped]), written.len() / topics.len())
            .await;
    }
    assert_eq!(written.len(), EVENTS);
    let burnt = "status <> 'done' OR attempts <> 1 OR crashes > 0";
    assert_eq!(place.count(burnt).await, 0, "no attempt is burnt");
    relay.stop().await;

    brokers::assert_all_there("four brokers", &mut brokers, &written, KeyOrder::Unordered).await;
}
