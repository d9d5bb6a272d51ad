//! Brokers that die, hang and come back: nothing is lost, the order of a key is kept, copies are at most
//! what was in flight.

use std::time::Duration;

use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope};
use outbox_testkit::servers::Kafka;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    all_delivered, configured, first_appearances, numbers, publish_all, records, topic,
};

/// The batch of `publish_all`.
const IN_FLIGHT: usize = 200;

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// One broker through all of it, since each start takes seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_hangs_and_restarts() {
    let mut server = blocking(Kafka::start).unwrap();
    let brokers = server.bootstrap();
    let publisher = configured(&brokers, |config| {
        config.publish_timeout = Duration::from_secs(3);
        config.connect_timeout = Duration::from_secs(2);
    });
    publisher.check().await.unwrap();

    // SIGSTOP: the call ends at its deadline, in doubt; afterwards it goes on.
    let hung = topic(&brokers, "hung").await;
    // The first records of a cold broker may take longer than a call.
    publish_all(&publisher, &numbers(&hung, 0..5)).await;
    server.pause().unwrap();
    let started = Instant::now();
    let outcomes = publisher.publish(&numbers(&hung, 5..10)).await;
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    for outcome in &outcomes {
        let Outcome::Unknown(error) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(error.failure_scope(), Scope::Destination);
    }
    // Now it is known that nobody answers: nothing more is put in doubt.
    let outcomes = publisher.publish(&numbers(&hung, 5..10)).await;
    assert!(
        outcomes.iter().all(|o| matches!(o, Outcome::Failed(_))),
        "{outcomes:?}"
    );
    server.resume().unwrap();
    publish_all(&publisher, &numbers(&hung, 5..300)).await;
    let stored = records(&brokers, &hung).await;
    assert!(
        first_appearances(&stored).into_iter().eq(0..300),
        "order or loss"
    );
    assert!(stored.len() <= 300 + IN_FLIGHT, "{} records", stored.len());

    // SIGKILL under load, and back.
    let killed = topic(&brokers, "killed").await;
    let events = numbers(&killed, 0..4_000);
    let load = publish_all(&publisher, &events);
    let killing = async {
        sleep(Duration::from_millis(150)).await;
        blocking(|| server.kill()).unwrap();
        blocking(|| server.restart()).unwrap();
    };
    let (failures, ()) = tokio::join!(load, killing);
    let stored = records(&brokers, &killed).await;
    assert!(
        first_appearances(&stored).into_iter().eq(0..4_000),
        "order or loss"
    );
    // A call that failed may leave copies of what it had in flight.
    let copies = stored.len() - 4_000;
    assert!(
        copies <= failures * IN_FLIGHT,
        "{copies} copies of {failures} failures"
    );

    // Gone: the destination's fault, soon and without doubt.
    blocking(|| server.stop()).unwrap();
    let dead = async || {
        let started = Instant::now();
        let outcomes = publisher.publish(&numbers(&killed, 0..3)).await;
        (outcomes, started.elapsed())
    };
    // The first may still have believed in it.
    dead().await;
    let (outcomes, took) = dead().await;
    for outcome in &outcomes {
        let Outcome::Failed(error) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(error.failure_scope(), Scope::Destination);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert!(took < Duration::from_secs(3), "{took:?}");
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    blocking(|| server.restart()).unwrap();
    publish_all(&publisher, &numbers(&killed, 4_000..4_100)).await;
    publisher.check().await.unwrap();
}

/// Case kafka-idempotent-fatal: a topic that the broker makes by itself, and one that is deleted and made
/// again under a producer with sequence numbers for it.
async fn kafka_idempotent_fatal_no_topic_that_is_made_anew_loses_its_first_events(brokers: &str) {
    let publisher = configured(brokers, |c| c.publish_timeout = Duration::from_secs(5));
    publish_all(&publisher, &numbers("made-by-itself", 0..300)).await;
    let stored = records(brokers, "made-by-itself").await;
    assert!(first_appearances(&stored).into_iter().eq(0..300));

    let plain = crate::support::plain(brokers);
    crate::support::make_topic_by(&plain, "again", 1, &[]).await;
    all_delivered(&publisher.publish(&numbers("again", 0..300)).await);
    crate::support::delete_topic(brokers, "again").await;
    publish_all(&publisher, &numbers("again", 300..900)).await;
    let stored = records(brokers, "again").await;
    assert!(
        first_appearances(&stored).into_iter().eq(300..900),
        "order or loss"
    );
}

/// Case shutdown-drops-in-flight: closing waits for answers, no longer than it may, and a call that is cut off
/// leaves its events in doubt, never delivered or failed.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_drops_in_flight_after_the_grace_only() {
    let settings = [("auto.create.topics.enable", "true")];
    let server = blocking(|| Kafka::start_with(&settings, &[])).unwrap();
    let brokers = server.bootstrap();
    kafka_idempotent_fatal_no_topic_that_is_made_anew_loses_its_first_events(&brokers).await;
    let topic = topic(&brokers, "closing").await;
    for (pause, grace) in [
        (false, Duration::from_secs(20)),
        (true, Duration::from_millis(300)),
    ] {
        let publisher = configured(&brokers, |_| ());
        all_delivered(&publisher.publish(&numbers(&topic, 0..1)).await);
        if pause {
            server.pause().unwrap();
        }
        let events = numbers(&topic, 1..2_000);
        let started = Instant::now();
        let both = async {
            tokio::join!(publisher.publish(&events), async {
                sleep(Duration::from_millis(5)).await;
                publisher.close(grace).await;
            })
            .0
        };
        let outcomes = timeout(Duration::from_secs(25), both).await.unwrap();
        if pause {
            assert!(
                started.elapsed() < Duration::from_secs(3),
                "{:?}",
                started.elapsed()
            );
            assert!(outcomes.iter().all(|outcome| !outcome.is_delivered()));
            assert!(outcomes.iter().any(|o| matches!(o, Outcome::Unknown(_))));
        } else {
            all_delivered(&outcomes);
        }
        let late = publisher.publish(&numbers(&topic, 0..1)).await;
        assert!(matches!(late[0], Outcome::Failed(_)), "{late:?}");
    }
    server.resume().unwrap();
}
