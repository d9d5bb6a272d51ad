//! Encrypted connections: the broker's certificate is checked, and SCRAM signs in over them.

use std::time::Duration;

use outbox_core::{ErrorKind, Publisher as _, Scope};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_testkit::servers::Kafka;
use rdkafka::ClientConfig;

use crate::support::{all_delivered, failed, make_topic_by, numbers};

#[tokio::test(flavor = "multi_thread")]
async fn i15_certificates_are_checked_and_scram_signs_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("stranger.pem"), stranger.cert.pem()).unwrap();
    let both = made.signing_key.serialize_pem() + &made.cert.pem();
    std::fs::write(path("both.pem"), both).unwrap();
    let login = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let (keystore, truststore) = (path("both.pem"), path("cert.pem"));
    let settings = [
        (
            "listener.security.protocol.map",
            "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        ),
        ("ssl.keystore.type", "PEM"),
        ("ssl.keystore.location", keystore.as_str()),
        // A broker tries at its start whether it could connect to itself.
        ("ssl.truststore.type", "PEM"),
        ("ssl.truststore.location", truststore.as_str()),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-256"),
        ("sasl.mechanism.inter.broker.protocol", "SCRAM-SHA-256"),
        (
            "listener.name.plaintext.scram-sha-256.sasl.jaas.config",
            login,
        ),
    ];
    let user = ["--add-scram", "SCRAM-SHA-256=[name=relay,password=secret]"];
    let server = tokio::task::block_in_place(|| Kafka::start_with(&settings, &user)).unwrap();
    let with = |authority: &str, password: &str| {
        let mut config = KafkaConfig::new(server.bootstrap());
        config.connect_timeout = Duration::from_secs(3);
        for (name, value) in [
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", path(authority).as_str()),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.username", "relay"),
            ("sasl.password", password),
        ] {
            config.properties.insert(name.to_owned(), value.to_owned());
        }
        config
    };
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", server.bootstrap());
    client.extend(with("cert.pem", "secret").properties);
    make_topic_by(&client, "t", 1, &[]).await;

    for (authority, password) in [("stranger.pem", "secret"), ("cert.pem", "wr0ng")] {
        let publisher = KafkaPublisher::new(with(authority, password)).unwrap();
        let outcomes = publisher.publish(&numbers("t", 0..2)).await;
        let error = failed(&outcomes[0], ErrorKind::Unauthenticated, Scope::Destination);
        assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
        let error = publisher.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    }
    // A file that is not there is a wrong setting, whose name is told.
    let publisher = KafkaPublisher::new(with("missing.pem", "secret")).unwrap();
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    assert!(error.to_string().contains("ssl.ca.location"), "{error}");

    let publisher = KafkaPublisher::new(with("cert.pem", "secret")).unwrap();
    publisher.check().await.unwrap();
    all_delivered(&publisher.publish(&numbers("t", 0..5)).await);
}
