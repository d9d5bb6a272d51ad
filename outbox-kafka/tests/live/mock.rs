//! Faults of librdkafka's mock cluster: answers that no real broker gives at will.

use std::time::Duration;

use outbox_core::{ErrorKind, Outcome, Publisher as _, Scope};
use outbox_testkit::log::Lines;
use rdkafka::{
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use tokio::time::{Instant, timeout};

use crate::support::{all_delivered, configured, first_appearances, numbers, records};

type Mock = MockCluster<'static, DefaultProducerContext>;

fn mock(topics: &[&str]) -> Mock {
    let cluster = MockCluster::new(1).unwrap();
    for topic in topics {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    cluster
}

/// Case kafka-idempotent-fatal: the broker's sequence numbers do not fit. The producer ends itself;
/// what is not acknowledged is in doubt, with destination scope; the next call has a new producer and
/// delivers everything, in order.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_idempotent_fatal_makes_a_new_producer() {
    let cluster = mock(&["t"]);
    let brokers = cluster.bootstrap_servers();
    let publisher = configured(&brokers, |c| c.publish_timeout = Duration::from_secs(10));
    all_delivered(&publisher.publish(&numbers("t", 0..5)).await);
    let out_of_order = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    let lines = Lines::default();
    {
        let _guard = lines.follow();
        cluster.request_errors(RDKafkaApiKey::Produce, &[out_of_order; 3]);
        let started = Instant::now();
        let outcomes = publisher.publish(&numbers("t", 5..25)).await;
        assert!(
            started.elapsed() < Duration::from_secs(9),
            "it waits for nothing"
        );
        // It may end itself before all of them were handed over.
        assert!(matches!(outcomes[0], Outcome::Unknown(_)), "{outcomes:?}");
        for outcome in &outcomes {
            let (Outcome::Unknown(error) | Outcome::Failed(error)) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!(error.failure_scope(), Scope::Destination, "{error}");
            assert!(error.to_string().contains("ended itself"), "{error}");
        }
    }
    assert_eq!(lines.with("a producer ended itself").len(), 1);
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    all_delivered(&publisher.publish(&numbers("t", 5..25)).await);
    let stored = records(&brokers, "t").await;
    assert!(first_appearances(&stored).into_iter().eq(0..25));
}

/// A user who may not use idempotent producers: that is no event's fault, and told at once.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_idempotent_fatal_for_want_of_permission_needs_an_operator() {
    let cluster = mock(&["t"]);
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refused; 5]);
    let publisher = configured(&cluster.bootstrap_servers(), |config| {
        config.publish_timeout = Duration::from_secs(5);
    });
    let outcomes = publisher.publish(&numbers("t", 0..3)).await;
    for outcome in &outcomes {
        let error = outcome.error().expect("it was refused");
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
        assert_eq!(error.failure_scope(), Scope::Destination, "{error}");
        assert!(error.kind().needs_operator());
    }
    cluster.clear_request_errors(RDKafkaApiKey::InitProducerId);
    all_delivered(&publisher.publish(&numbers("t", 0..3)).await);
}

/// What librdkafka repeats by itself is not seen outside.
#[tokio::test(flavor = "multi_thread")]
async fn passing_faults_are_repaired_within_the_call() {
    let cluster = mock(&["t"]);
    let brokers = cluster.bootstrap_servers();
    let publisher = configured(&brokers, |_| ());
    for code in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
    ] {
        cluster.request_errors(RDKafkaApiKey::Produce, &[code]);
        all_delivered(&publisher.publish(&numbers("t", 0..5)).await);
    }
}

/// The brokers' permission for a topic, refused for what is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_topic_stops_itself_only() {
    let cluster = mock(&["forbidden", "good"]);
    let publisher = configured(&cluster.bootstrap_servers(), |_| ());
    let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.topic_error("forbidden", forbidden).unwrap();
    let mut events = numbers("good", 0..4);
    events[1].topic = "forbidden".to_owned();
    let mut outcomes = publisher.publish(&events).await;
    let outcome = outcomes.remove(1);
    crate::support::failed(&outcome, ErrorKind::Unauthorized, Scope::Topic);
    all_delivered(&outcomes);
}

/// A partition that can't be written now, as without a leader: librdkafka goes on trying to the end
/// of the call. Other topics do not pay for it.
#[tokio::test(flavor = "multi_thread")]
async fn i7_a_topic_without_a_leader_pays_for_itself() {
    let cluster = mock(&["poor", "good"]);
    cluster.partition_leader("poor", 0, None).unwrap();
    let publisher = configured(&cluster.bootstrap_servers(), |config| {
        config.publish_timeout = Duration::from_secs(2);
    });
    let mut events = numbers("good", 0..3);
    for index in [0, 2] {
        events[index].topic = "poor".to_owned();
    }
    let outcomes = publisher.publish(&events).await;
    all_delivered(&outcomes[1..2]);
    for outcome in [&outcomes[0], &outcomes[2]] {
        let error = outcome.error().expect("nobody takes it");
        assert_eq!(error.failure_scope(), Scope::Topic, "{error}");
        assert!(!matches!(outcome, Outcome::Rejected(_)), "{outcome:?}");
    }
    all_delivered(&publisher.publish(&numbers("good", 1..3)).await);
}

/// A call that is dropped takes its events back: they are not sent behind its back, at a time when
/// others may have published them.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_sends_nothing_later() {
    let cluster = mock(&["poor", "good"]);
    let brokers = cluster.bootstrap_servers();
    let publisher = configured(&brokers, |_| ());
    all_delivered(&publisher.publish(&numbers("good", 0..1)).await);
    cluster.partition_leader("poor", 0, None).unwrap();
    let events = numbers("poor", 0..5);
    let call = timeout(Duration::from_secs(2), publisher.publish(&events));
    call.await.expect_err("nobody takes it");
    cluster.partition_leader("poor", 0, Some(1)).unwrap();
    // A producer that was kept would send what it holds before this.
    all_delivered(&publisher.publish(&numbers("poor", 5..6)).await);
    let stored = records(&brokers, "poor").await;
    assert_eq!(first_appearances(&stored), [5]);
}
