//! `tls://`: certificates are checked; without the feature the URL is a wrong setting.

use outbox_core::ErrorKind;
use outbox_nats::{NatsConfig, NatsPublisher};

fn refused(config: NatsConfig, part: &str) {
    let error = NatsPublisher::new(config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains(part), "{error}");
}

fn with_ca(url: &str, path: &std::path::Path) -> NatsConfig {
    let mut config = NatsConfig::new(url);
    config.ca_file = Some(path.to_owned());
    config
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_needs_the_feature() {
    refused(NatsConfig::new("tls://localhost"), "TLS");
    let path = std::path::Path::new("ca.pem");
    refused(with_ca("nats://localhost", path), "feature");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn i15_certificates_are_checked() {
    use outbox_core::{Publisher as _, Scope};
    use outbox_testkit::servers::Nats;

    use crate::support::{all_delivered, failed, numbers, publisher};

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let server = Nats::start_with(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}",
        path("cert.pem").display(),
        path("key.pem").display()
    ))
    .unwrap();
    let port = server.address().port();

    let url = format!("tls://user:p%40ss@localhost:{port}");
    for outcome in publisher(&url).publish(&numbers("t", 0..2)).await {
        let error = failed(&outcome, ErrorKind::Unauthenticated, Scope::Destination);
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(!format!("{error:?}").contains("p%40ss"), "{error:?}");
    }

    let url = format!("tls://localhost:{port}");
    let client = async_nats::ConnectOptions::new().add_root_certificates(path("cert.pem"));
    let streams = async_nats::jetstream::new(client.connect(&url).await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "S".to_owned(),
        subjects: vec!["t".to_owned()],
        ..Default::default()
    };
    let mut stream = streams.create_stream(config).await.unwrap();
    let trusting = NatsPublisher::new(with_ca(&url, &path("cert.pem"))).unwrap();
    trusting.check().await.unwrap();
    all_delivered(&trusting.publish(&numbers("t", 0..2)).await);
    assert_eq!(stream.info().await.unwrap().state.messages, 2);

    // A server that offers none must not be taken for one that does.
    let plain = Nats::start().unwrap();
    let url = format!("tls://localhost:{}", plain.address().port());
    let lured = NatsPublisher::new(with_ca(&url, &path("cert.pem"))).unwrap();
    for outcome in lured.publish(&numbers("t", 0..1)).await {
        assert!(
            matches!(&outcome, outbox_core::Outcome::Failed(error) if error.failure_scope() == Scope::Destination),
            "{outcome:?}"
        );
    }

    refused(with_ca(&url, &path("absent.pem")), "can't be read");
    std::fs::write(path("broken.pem"), "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
    refused(with_ca(&url, &path("broken.pem")), "PEM");
    std::fs::write(path("empty.pem"), "").unwrap();
    refused(with_ca(&url, &path("empty.pem")), "PEM");
}
