//! Users, passwords and permissions; and what is never shown of them (I15, case creds-in-log).

use std::time::Duration;

use outbox_core::{Error, ErrorKind, Publisher as _, Scope};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_testkit::{log::Lines, servers::Kafka};
use rdkafka::ClientConfig;
use tokio::time::Instant;

use crate::support::{all_delivered, failed, make_topic_by, numbers};

const PASSWORD: &str = "p@ss:w/ord%21";

fn properties(user: &str, password: &str) -> [(&'static str, String); 4] {
    [
        ("security.protocol", "SASL_PLAINTEXT".to_owned()),
        ("sasl.mechanism", "PLAIN".to_owned()),
        ("sasl.username", user.to_owned()),
        ("sasl.password", password.to_owned()),
    ]
}

fn publisher(brokers: &str, user: &str, password: &str) -> KafkaPublisher {
    let mut config = KafkaConfig::new(brokers);
    config.publish_timeout = Duration::from_secs(6);
    config.connect_timeout = Duration::from_secs(3);
    for (name, value) in properties(user, password) {
        config.properties.insert(name.to_owned(), value);
    }
    KafkaPublisher::new(config).unwrap()
}

fn client(brokers: &str, user: &str, password: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    for (name, value) in properties(user, password) {
        client.set(name, value);
    }
    client
}

fn shows_no_secret(publisher: &KafkaPublisher, error: &Error) {
    let shown = format!("{error} {error:?} {publisher:?}");
    for secret in [PASSWORD, "p@ss", "wr0ng"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn creds_in_log_passwords_and_permissions_are_checked_and_never_shown() {
    let users = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required \
         user_admin=\"{PASSWORD}\" user_relay=\"{PASSWORD}\";"
    );
    let settings = [
        (
            "listener.security.protocol.map",
            "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        ),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
        (
            "listener.name.plaintext.plain.sasl.jaas.config",
            users.as_str(),
        ),
        (
            "authorizer.class.name",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ),
        ("super.users", "User:admin;User:ANONYMOUS"),
    ];
    let server = tokio::task::block_in_place(|| Kafka::start_with(&settings, &[])).unwrap();
    let brokers = server.bootstrap();
    let admin = client(&brokers, "admin", PASSWORD);
    make_topic_by(&admin, "orders", 1, &[]).await;

    let lines = Lines::default();
    let _guard = lines.follow();
    for (user, password) in [("admin", "wr0ng"), ("nobody", PASSWORD)] {
        let publisher = publisher(&brokers, user, password);
        let started = Instant::now();
        for outcome in publisher.publish(&numbers("orders", 0..3)).await {
            let error = failed(&outcome, ErrorKind::Unauthenticated, Scope::Destination);
            shows_no_secret(&publisher, error);
        }
        let error = publisher.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        shows_no_secret(&publisher, &error);
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{:?}",
            started.elapsed()
        );
    }

    let good = publisher(&brokers, "admin", PASSWORD);
    good.check().await.unwrap();
    all_delivered(&good.publish(&numbers("orders", 0..3)).await);

    // Signed in, and permitted nothing: the topic's own fault.
    let relay = publisher(&brokers, "relay", PASSWORD);
    relay.check().await.unwrap();
    for outcome in relay.publish(&numbers("orders", 3..6)).await {
        let error = failed(&outcome, ErrorKind::Unauthorized, Scope::Topic);
        shows_no_secret(&relay, error);
    }
    for secret in ["p@ss", "wr0ng"] {
        assert_eq!(lines.with(secret), [""; 0]);
    }
}

#[tokio::test]
async fn creds_in_log_an_unreachable_broker_is_unavailable() {
    let publisher = publisher("127.0.0.1:1", "relay", PASSWORD);
    let started = Instant::now();
    let outcomes = publisher.publish(&numbers("t", 0..2)).await;
    let error = failed(&outcomes[1], ErrorKind::Unavailable, Scope::Destination);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    shows_no_secret(&publisher, error);
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    shows_no_secret(&publisher, &error);
}
